const SVG = "http://www.w3.org/2000/svg";
const SPARK_HEIGHT = 20;

export default function ({ data, parentElement, setTriggerValue }) {
  const frame = parentElement.querySelector(".frame");
  const focused = frame.getRootNode().activeElement?.dataset.id;
  const top = frame.querySelector(".list")?.scrollTop ?? 0;
  const bar = make("div", "bar", data.summary, "patterns-summary");
  const list = make("div", "list");
  list.append(...data.rows.map((pattern) => row(data, pattern, () => setTriggerValue("opened", pattern.id))));
  frame.replaceChildren(bar, list);
  list.scrollTop = top;
  if (focused) [...list.children].find((each) => each.dataset.id === focused)?.focus();
}

function row(data, pattern, open) {
  const made = make("div", pattern.can_open ? "row" : "row other", undefined, "pattern");
  made.dataset.id = pattern.id;
  made.title = pattern.title;
  made.style.setProperty("--tint", data.levels[pattern.level]);
  if (pattern.can_open) {
    made.tabIndex = 0;
    made.setAttribute("role", "button");
    made.onclick = open;
    made.onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      open();
    };
  }
  made.append(make("span", "edge"), count(pattern), trend(pattern), make("span", "level", pattern.level), text(pattern), services(pattern));
  return made;
}

function count(pattern) {
  const made = make("span", "count");
  const bar = make("span", "part");
  bar.style.width = `${Math.max(2, pattern.part * 100)}%`;
  made.append(bar, make("span", "records", pattern.records), make("span", "share", pattern.share));
  return made;
}

function trend(pattern) {
  const made = make("span", "trend", undefined, "pattern-trend");
  const svg = document.createElementNS(SVG, "svg");
  const top = Math.max(1, ...pattern.trend);
  svg.setAttribute("viewBox", `0 0 ${pattern.trend.length} ${SPARK_HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  pattern.trend.forEach((records, at) => {
    if (!records) return;
    const height = Math.max(1.5, (records / top) * SPARK_HEIGHT);
    const bar = document.createElementNS(SVG, "rect");
    for (const [name, value] of Object.entries({ x: at + 0.08, y: SPARK_HEIGHT - height, width: 0.84, height })) bar.setAttribute(name, value);
    svg.append(bar);
  });
  made.append(svg);
  return made;
}

function text(pattern) {
  const made = make("span", "text", undefined, "pattern-text");
  if (pattern.is_new) made.append(make("span", "new", "new", "pattern-new"));
  pattern.template.forEach((part, at) => {
    if (at) made.append(make("span", "mask", "<*>"));
    made.append(document.createTextNode(part));
  });
  return made;
}

function services(pattern) {
  const made = make("span", "services");
  for (const [name, colour] of pattern.services) {
    const chip = make("span", "chip", name);
    chip.style.setProperty("--tint", colour);
    chip.title = name;
    made.append(chip);
  }
  if (pattern.more > 0) made.append(make("span", "more", `+${pattern.more}`));
  return made;
}
