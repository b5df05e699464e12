// Shows what is opened (a trace, a service) from its top, and the list where the user left it. Streamlit keeps the
// scroll position of the page, whatever its content is.

const SETTLED_MS = 400;
const RESTORE_MS_MAX = 30000;
const state = { parameter: "", view: undefined, isMounted: false, stop: null, listTop: 0 };

export default function ({ data }) {
  const page = document.querySelector("[data-testid=stMain]");
  if (state.page !== page) {
    state.page = page;
    page.addEventListener("scroll", () => note(page));
    for (const kind of ["wheel", "touchstart", "pointerdown", "keydown"])
      page.addEventListener(kind, () => state.stop?.(), { passive: true });
  }
  state.isMounted = true;
  if (state.parameter !== data.parameter) Object.assign(state, { parameter: data.parameter, view: undefined, listTop: 0 });
  if (state.view !== undefined && state.view !== data.opened) scrollTo(page, data.opened ? 0 : state.listTop);
  state.view = data.opened;
  return () => { state.isMounted = false; };
}

// The URL changes before the content does, and the content before `view`: positions in between are not recorded.
function note(page) {
  const opened = new URLSearchParams(location.search).get(state.parameter) ?? "";
  if (state.isMounted && !state.stop && opened === "" && state.view === "") state.listTop = page.scrollTop;
}

// Sets the position until the content has stopped growing, or the user scrolls.
function scrollTo(page, top) {
  state.stop?.();
  const begun = performance.now();
  let settled = begun;
  let height = 0;
  let frame = 0;
  state.stop = () => {
    cancelAnimationFrame(frame);
    state.stop = null;
  };
  const step = (now) => {
    if (page.scrollHeight !== height || page.scrollTop !== top) settled = now;
    height = page.scrollHeight;
    page.scrollTop = top;
    if (now - settled > SETTLED_MS || now - begun > RESTORE_MS_MAX) state.stop();
    else frame = requestAnimationFrame(step);
  };
  frame = requestAnimationFrame(step);
}
