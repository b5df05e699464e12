// The age of the data grows in the browser: while the API hangs, the server sends nothing.

const HANGING_SECONDS = 10;
const states = new WeakMap();

function elapsed(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  return whole < 120 ? `${whole} s` : `${Math.floor(whole / 60)} min`;
}

function begin(frame) {
  const state = { data: null, receivedAt: 0, busySince: null };
  state.text = make("span", "", "");
  state.button = make("button", "", "Try again");
  state.button.type = "button";
  state.button.onclick = () => state.again();
  frame.append(state.text, state.button);
  state.timer = setInterval(() => draw(state, frame), 1000);
  return state;
}

function draw(state, frame) {
  if (!frame.isConnected) {
    clearInterval(state.timer);
    return;
  }
  const now = performance.now();
  const isBusy = document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === "running";
  state.busySince = isBusy ? state.busySince ?? now : null;
  const busySeconds = isBusy ? (now - state.busySince) / 1000 : 0;
  const reason = state.data.reason || (busySeconds >= HANGING_SECONDS ? `the API has not answered for ${elapsed(busySeconds)}` : "");
  const age = state.data.age_seconds + (now - state.receivedAt) / 1000;
  frame.hidden = !reason;
  state.text.textContent = `Last updated ${state.data.clock} UTC, ${elapsed(age)} ago: ${reason}`;
  state.button.hidden = isBusy;
}

export default function ({ data, parentElement, setTriggerValue }) {
  const frame = parentElement.querySelector(".frame");
  if (!states.has(frame)) states.set(frame, begin(frame));
  const state = states.get(frame);
  state.data = data;
  state.receivedAt = performance.now();
  state.again = () => setTriggerValue("again", true);
  draw(state, frame);
}
