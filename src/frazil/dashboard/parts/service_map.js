const SVG = "http://www.w3.org/2000/svg";
const NAME_CHARS = 20;
const ARROW = 8;
const states = new WeakMap();

function shape(tag, given, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function begin(frame) {
  const scroller = make("div", "scroller");
  const svg = shape("svg", { role: "group", "aria-label": "Map of services" });
  scroller.append(svg);
  frame.replaceChildren(scroller, legend());
  return { frame, svg, drawn: "" };
}

function legend() {
  const made = make("div", "legend");
  for (const [level, text] of [["ok", "< 1% failed"], ["warn", "1–5%"], ["bad", "≥ 5%"]]) {
    const item = make("span", level);
    item.append(make("i"), document.createTextNode(text));
    made.append(item);
  }
  for (const [kind, text] of [["service", "service"], ["database", "database"], ["messaging", "queue"], ["external", "external host"]]) {
    const item = make("span", "");
    const icon = shape("svg", { viewBox: "0 0 24 16", width: 24, height: 16, "aria-hidden": "true" });
    const outline = shape("path", { d: outlineOf(kind, 12, 8, 20, 13), class: "outline" });
    icon.append(outline);
    item.append(icon, document.createTextNode(text));
    made.append(item);
  }
  made.append(make("span", "", "Width: calls. Figures: rate and p99"));
  return made;
}

// The outline of a node: each kind has its own.
function outlineOf(kind, x, y, width, height) {
  const [left, right, top, bottom] = [x - width / 2, x + width / 2, y - height / 2, y + height / 2];
  if (kind === "database") {
    const rx = width / 2;
    const ry = Math.min(5, height / 5);
    return `M${left},${top + ry} A${rx},${ry} 0 0 1 ${right},${top + ry} V${bottom - ry} A${rx},${ry} 0 0 1 ${left},${bottom - ry} Z`
      + ` M${left},${top + ry} A${rx},${ry} 0 0 0 ${right},${top + ry}`;
  }
  if (kind === "messaging") {
    const r = height / 2;
    return `M${left + r},${top} H${right - r} A${r},${r} 0 0 1 ${right - r},${bottom} H${left + r} A${r},${r} 0 0 1 ${left + r},${top} Z`;
  }
  if (kind === "external") {
    const cut = Math.min(12, height / 2.5);
    return `M${left + cut},${top} H${right - cut} L${right},${y} L${right - cut},${bottom} H${left + cut} L${left},${y} Z`;
  }
  const r = Math.min(7, height / 4);
  return `M${left + r},${top} H${right - r} Q${right},${top} ${right},${top + r} V${bottom - r} Q${right},${bottom} ${right - r},${bottom}`
    + ` H${left + r} Q${left},${bottom} ${left},${bottom - r} V${top + r} Q${left},${top} ${left + r},${top} Z`;
}

function cut(text) {
  const letters = [...text];
  return letters.length > NAME_CHARS ? `${letters.slice(0, NAME_CHARS - 1).join("")}…` : text;
}

function drawNode(data, node, at, pick) {
  const [width, height] = data.node;
  const [x, y] = node.at;
  const made = shape(node.address ? "a" : "g", {
    class: `node ${node.level}${node.chosen ? " chosen" : ""}`, tabindex: 0, "data-testid": "service-node", "data-kind": node.kind,
    "aria-label": node.title,
  });
  made.setAttribute(node.address ? "href" : "role", node.address ?? "button");
  made.dataset.name = node.name;
  made.dataset.at = at;
  made.append(shape("title", {}, node.title), shape("path", { class: "outline", d: outlineOf(node.kind, x, y, width, height) }));
  const left = x - width / 2 + (node.kind === "external" ? 16 : node.kind === "messaging" ? 18 : 14);
  if (node.kind === "service") {
    const strip = shape("rect", { class: "colour", x: x - width / 2 + 5, y: y - height / 2 + 7, width: 4, height: height - 14, rx: 2 });
    strip.style.fill = node.colour;
    made.append(strip);
  }
  const shift = node.kind === "database" ? 4 : 0;
  made.append(shape("text", { class: "name", x: left, y: y - 4 + shift }, cut(node.name)));
  const figures = shape("text", { class: "figures", x: left, y: y + 12 + shift });
  figures.append(shape("tspan", {}, node.figures));
  if (node.failed) figures.append(shape("tspan", { class: "failed", dx: 6 }, node.failed));
  made.append(figures);
  onChoice(made, (event) => {
    if (node.address && (event.ctrlKey || event.metaKey || event.shiftKey)) return false;
    pick({ node: { kind: node.kind, name: node.name } });
    return true;
  });
  return made;
}

function onChoice(made, choose) {
  made.addEventListener("click", (event) => { if (choose(event)) event.preventDefault(); });
  made.addEventListener("keydown", (event) => {
    if ((event.key === "Enter" || event.key === " ") && choose(event)) event.preventDefault();
  });
}

// A curve through the points of a call, horizontal at each of them.
function curve(points) {
  return points.map(([x, y], at) => {
    if (!at) return `M${x},${y}`;
    const [fromX, fromY] = points[at - 1];
    const middle = (fromX + x) / 2;
    return `C${middle},${fromY} ${middle},${y} ${x},${y}`;
  }).join(" ");
}

function drawCall(data, call, pick) {
  const [caller, callee] = call.ends.map((end) => data.nodes[end]);
  const made = shape("g", {
    class: `call ${call.level}${call.message ? " message" : ""}`, tabindex: 0, role: "button", "data-testid": "service-call",
    "aria-label": call.title,
  });
  made.dataset.from = call.ends[0];
  made.dataset.to = call.ends[1];
  made.append(shape("title", {}, call.title));
  const points = call.line ? [...call.line] : null;
  let path;
  let label;
  if (points) {
    const last = points.length - 1;
    const [endX, endY] = points[last];
    const way = Math.sign(endX - points[last - 1][0]) || 1;
    const line = [...points.slice(0, last), [endX - way * ARROW, endY]];
    path = curve(line);
    made.append(shape("path", { class: "arrow", d: `M${endX},${endY} l${-way * ARROW},-4.5 v9 Z` }));
    label = labelPoint(data, call, points);
  } else { // a service that calls itself
    const [x, y] = [caller.at[0] + data.node[0] / 4, caller.at[1] - data.node[1] / 2];
    path = `M${x - 14},${y} C${x - 14},${y - 22} ${x + 14},${y - 22} ${x + 14},${y - 2}`;
    label = [x + 40, y - 6];
  }
  const line = shape("path", { class: "line", d: path });
  line.style.strokeWidth = `${call.pixels}px`;
  made.prepend(shape("path", { class: "reach", d: path }), line);
  const text = shape("text", { class: `label ${call.level}`, x: label[0], y: label[1], "text-anchor": "middle" });
  text.append(shape("tspan", {}, call.figures));
  if (call.failed) text.append(shape("tspan", { class: "failed", dx: 5 }, call.failed));
  for (const [kind, isLit] of [["pointerenter", true], ["pointerleave", false], ["focus", true], ["blur", false]])
    made.addEventListener(kind, () => text.classList.toggle("lit", isLit));
  const named = (node) => ({ kind: node.kind, name: node.name });
  onChoice(made, () => { pick({ caller: named(caller), callee: named(callee) }); return true; });
  return { made, text };
}

// Beside the end at which fewer calls meet, where lines are apart from each other.
function labelPoint(data, call, points) {
  const [caller, callee] = call.ends;
  const sent = data.calls.filter((other) => other.ends[0] === caller).length;
  const received = data.calls.filter((other) => other.ends[1] === callee).length;
  const isAtCaller = received > sent;
  const [[fromX, fromY], [toX, toY]] = isAtCaller ? points : points.slice(-2);
  const t = isAtCaller ? 0.36 : 0.64;
  const [near, far] = [(1 - t) ** 3 + 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t ** 2 + t ** 3];
  const bend = 1.5 * (1 - t) * t;
  const above = Math.abs(toY - fromY) < 14 ? -6 - call.pixels / 2 : 4; // a level line would strike the text out
  return [((1 - t) ** 3 + bend) * fromX + (bend + t ** 3) * toX, near * fromY + far * toY + above];
}

// While a node is pointed at, its calls and neighbours stay as they are, and all others fade.
function light(svg, at) {
  svg.classList.toggle("lighting", at !== null);
  const lit = new Set([at]);
  for (const call of svg.querySelectorAll(".call")) {
    const isLit = at !== null && (call.dataset.from === at || call.dataset.to === at);
    call.classList.toggle("lit", isLit);
    call.label.classList.toggle("lit", isLit);
    if (isLit) lit.add(call.dataset.from).add(call.dataset.to);
  }
  for (const node of svg.querySelectorAll(".node")) node.classList.toggle("lit", lit.has(node.dataset.at));
}

function draw(state, data) {
  const { svg } = state;
  const focused = state.frame.getRootNode().activeElement;
  const kept = focused && svg.contains(focused) ? focused.getAttribute("aria-label")?.split(":")[0] : null;
  svg.setAttribute("viewBox", `0 0 ${data.width} ${data.height}`);
  svg.style.maxWidth = `${data.width}px`;
  svg.style.minWidth = `${Math.min(data.width, data.width * 0.7)}px`;
  svg.classList.toggle("labelled", data.labelled);
  const pick = (what) => state.pick(what);
  const drawn = data.calls.map((call) => drawCall(data, call, pick));
  const calls = drawn.map(({ made, text }) => Object.assign(made, { label: text }));
  const nodes = data.nodes.map((node, at) => drawNode(data, node, String(at), pick));
  for (const node of nodes) {
    node.addEventListener("pointerenter", () => light(svg, node.dataset.at));
    node.addEventListener("pointerleave", () => light(svg, null));
  }
  svg.replaceChildren(...calls, ...nodes, ...drawn.map(({ text }) => text));
  light(svg, null);
  if (kept) [...nodes, ...calls].find((each) => each.getAttribute("aria-label").split(":")[0] === kept)?.focus();
}

export default function ({ data, parentElement, setTriggerValue }) {
  const frame = parentElement.querySelector(".frame");
  if (!states.has(frame)) states.set(frame, begin(frame));
  const state = states.get(frame);
  state.pick = (what) => setTriggerValue("picked", what);
  const json = JSON.stringify(data);
  if (json === state.drawn) return;
  state.drawn = json;
  draw(state, data);
}
