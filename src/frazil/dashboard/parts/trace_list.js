const NARROW = 1280;
const NARROW_CHIPS = 2;

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".list");
  root.replaceChildren(head(), ...data.map((trace) => row(trace, setTriggerValue)));
}

function head() {
  const made = document.createElement("div");
  made.className = "row head";
  for (const [name, text] of [
    ["start", "Start (UTC)"],
    ["root", "Root"],
    ["duration", "Duration"],
    ["spans", "Spans"],
    ["errors", "Errors"],
    ["services", "Services"],
  ])
    cell(made, name, text);
  return made;
}

function row(trace, setTriggerValue) {
  const made = document.createElement("a");
  made.className = "row trace";
  made.dataset.testid = "trace-row";
  made.dataset.trace = trace.id;
  made.href = address(trace.id);
  made.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    setTriggerValue("opened", trace.id);
  });
  const start = cell(made, "start", trace.clock);
  start.title = `${trace.day} ${trace.clock} UTC`;
  const root = cell(made, "root");
  root.title = `${trace.service}: ${trace.name}${trace.rootless ? " (root span missing: this is the earliest span)" : ""}`;
  const colour = part(root, "colour", "");
  colour.style.background = trace.colour;
  part(root, "name", trace.name);
  part(root, "service", trace.service);
  if (trace.rootless) part(root, "rootless", "no root");
  const duration = cell(made, "duration");
  const bar = part(duration, "bar", "");
  bar.style.width = `${Math.max(1, trace.part * 100)}%`;
  if (trace.errors) bar.classList.add("bad");
  part(duration, "time", trace.duration);
  cell(made, "spans", String(trace.spans));
  cell(made, trace.errors ? "errors some" : "errors", trace.errors ? String(trace.errors) : "–");
  const services = cell(made, "services");
  // Two legible names in place of four that are cut.
  const shown = trace.services.slice(0, innerWidth < NARROW ? NARROW_CHIPS : undefined);
  const others = trace.services.slice(shown.length).map(([name]) => name);
  if (trace.more) others.push(trace.more);
  for (const [name, tint, isBad] of shown) {
    const chip = part(services, isBad ? "chip bad" : "chip", name);
    chip.style.setProperty("--tint", tint);
    chip.title = isBad ? `${name} (with errors)` : name;
  }
  const more = trace.services.length - shown.length + trace.more_count;
  if (more) part(services, "more", `+${more}`).title = others.join(", ");
  return made;
}

// On the page of traces, wherever the list is. Keeps the time range, so that a new tab can return to the same search.
function address(id) {
  const query = new URLSearchParams({ trace: id });
  const range = new URLSearchParams(location.search).get("range");
  if (range) query.set("range", range);
  return `traces?${query}`;
}

function cell(parent, name, text = "") {
  const made = document.createElement("div");
  made.className = `cell ${name}`;
  made.textContent = text;
  parent.append(made);
  return made;
}

function part(parent, name, text) {
  const made = document.createElement("span");
  made.className = name;
  made.textContent = text;
  parent.append(made);
  return made;
}
