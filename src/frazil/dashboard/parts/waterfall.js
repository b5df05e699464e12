// Only visible rows are in the DOM, so that 20,000 spans scroll as fast as 20.

const ROW = 24;
const VISIBLE_ROWS_MAX = 15;
const OVERSCAN = 8;
const INDENT = 12;
const NARROW_INDENT = 6;
const NARROW = 640;
const DEPTH_SHOWN_MAX = 14;

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".waterfall");
  const chart = (root.frazil ??= build(root));
  chart.pick = (handle) => setTriggerValue("picked", handle);
  chart.update(data);
  window.addEventListener("popstate", chart.takeSpan);
  return () => {
    chart.watch.disconnect();
    window.removeEventListener("popstate", chart.takeSpan);
  };
}

function build(root) {
  const chart = { root, closed: new Set(), picked: null, active: 0, from: 0, to: 1 };
  const head = element(root, "div", "head");
  chart.tools = element(head, "div", "tools");
  button(chart, "expand", "Expand all", () => setAll(chart, false));
  button(chart, "collapse", "Collapse all", () => setAll(chart, true));
  chart.nextError = button(chart, "next-error", "Next error", () => goToNextError(chart));
  chart.whole = button(chart, "whole", "Whole trace", () => zoom(chart, 0, 1));
  chart.ruler = element(head, "div", "ruler");
  chart.ruler.dataset.testid = "waterfall-ruler";
  chart.ruler.title = "Drag to zoom in, double-click for the whole trace";
  chart.brush = element(chart.ruler, "div", "brush");
  chart.scroller = element(root, "div", "scroller");
  chart.scroller.dataset.testid = "waterfall-rows";
  chart.scroller.tabIndex = 0;
  chart.scroller.setAttribute("role", "tree");
  chart.scroller.setAttribute("aria-label", "Spans of the trace");
  chart.rows = element(chart.scroller, "div", "rows");
  chart.scroller.addEventListener("scroll", () => draw(chart));
  chart.scroller.addEventListener("keydown", (event) => onKey(chart, event));
  chart.rows.addEventListener("click", (event) => onClick(chart, event));
  enableBrush(chart);
  chart.watch = new ResizeObserver(() => chart.data && arrange(chart));
  chart.update = (data) => update(chart, data);
  chart.takeSpan = () => {
    takeSpan(chart);
    update(chart, chart.data);
  };
  return chart;
}

function update(chart, data) {
  const isFirst = chart.data === undefined;
  chart.data = data;
  chart.errors = data.rows.flatMap((row, at) => (row.e ? [at] : []));
  chart.nextError.hidden = chart.errors.length === 0;
  chart.root.classList.toggle("critical", Boolean(data.critical));
  if (isFirst) takeSpan(chart);
  chart.watch.observe(chart.scroller);
  arrange(chart);
  if (isFirst || chart.revealed) scrollToRow(chart, chart.revealed ?? 0);
  chart.revealed = null;
}

// Selects the span of the URL.
function takeSpan(chart) {
  chart.picked = new URLSearchParams(location.search).get("span");
  const at = chart.data.rows.findIndex((row) => row.h === chart.picked);
  if (at >= 0) reveal(chart, at);
}

// Lists the visible rows. `b` is the number of rows below a row, which it hides when it is collapsed.
function arrange(chart) {
  const rows = chart.data.rows;
  chart.open = [];
  for (let at = 0; at < rows.length; at += 1) {
    chart.open.push(at);
    if (chart.closed.has(nameOf(rows[at]))) at += rows[at].b;
  }
  chart.rows.style.height = `${chart.open.length * ROW}px`;
  chart.scroller.style.height = `${Math.min(chart.open.length, VISIBLE_ROWS_MAX) * ROW + 2}px`;
  chart.ruler.style.marginRight = `${chart.scroller.offsetWidth - chart.scroller.clientWidth + 2}px`;
  chart.whole.hidden = chart.from === 0 && chart.to === 1;
  drawRuler(chart);
  draw(chart);
}

function nameOf(row) {
  return row.h ?? row.n;
}

function draw(chart) {
  if (!chart.data) return;
  const first = Math.max(0, Math.floor(chart.scroller.scrollTop / ROW) - OVERSCAN);
  const last = Math.min(chart.open.length, first + VISIBLE_ROWS_MAX + 2 * OVERSCAN);
  const drawn = [];
  for (let line = first; line < last; line += 1) drawn.push(drawRow(chart, line));
  chart.rows.replaceChildren(...drawn);
}

function drawRow(chart, line) {
  const at = chart.open[line];
  const row = chart.data.rows[at];
  const made = document.createElement("div");
  made.className = "row";
  made.style.top = `${line * ROW}px`;
  made.dataset.at = at;
  made.dataset.testid = "waterfall-row";
  if (row.h) made.dataset.span = row.h;
  made.setAttribute("role", "treeitem");
  made.setAttribute("aria-level", row.d + 1);
  if (row.b) made.setAttribute("aria-expanded", String(!chart.closed.has(nameOf(row))));
  if (row.h && row.h === chart.picked) made.classList.add("picked");
  if (line === chart.active) made.classList.add("active");
  if (row.c) made.classList.add("on-path");
  if (!row.h) made.classList.add("missing");
  drawName(chart, row, element(made, "div", "name"));
  drawBar(chart, row, element(made, "div", "lane"));
  made.title = describe(chart, row);
  return made;
}

function drawName(chart, row, cell) {
  cell.style.paddingLeft = `${4 + Math.min(row.d, DEPTH_SHOWN_MAX) * (innerWidth > NARROW ? INDENT : NARROW_INDENT)}px`;
  const twist = element(cell, "span", "twist");
  if (row.b) {
    twist.textContent = chart.closed.has(nameOf(row)) ? "▸" : "▾";
    twist.dataset.testid = "waterfall-twist";
  }
  const colour = element(cell, "span", "colour");
  colour.style.background = row.v === undefined ? "transparent" : chart.data.services[row.v][1];
  if (row.e) mark(cell, "error", "!", "waterfall-error");
  if (row.o) mark(cell, "odd", "?", "waterfall-odd");
  if (row.a !== undefined) {
    const made = element(cell, "span", "asynchronous");
    made.textContent = "async";
    made.dataset.testid = "waterfall-async";
  }
  const texts = element(cell, "span", "texts");
  element(texts, "span", "operation").textContent = row.n;
  if (row.v !== undefined) element(texts, "span", "service").textContent = chart.data.services[row.v][0];
  if (chart.closed.has(nameOf(row))) element(cell, "span", "hidden-count").textContent = `+${row.b}`;
  if (row.k > 1) element(cell, "span", "kind").textContent = chart.data.kinds[row.k];
}

function drawBar(chart, row, lane) {
  const left = position(chart, row.s);
  const right = position(chart, row.s + row.l);
  if (right < 0 || left > 100) return;
  const bar = element(lane, "div", "bar");
  bar.dataset.testid = "waterfall-bar";
  bar.style.left = `${clamp(left)}%`;
  bar.style.width = `max(2px, ${clamp(right) - clamp(left)}%)`;
  bar.style.background = row.v === undefined ? "" : chart.data.services[row.v][1];
  if (row.a !== undefined) hatch(chart, lane, Math.max(row.s, row.a), row.s + row.l);
  for (const [start, length] of row.c ?? []) drawCritical(chart, lane, start, length);
  for (const [time, isException] of row.t ?? []) dot(chart, lane, time, isException ? "tick exception" : "tick");
  for (const [time, colour] of row.g ?? []) dot(chart, lane, time, "log", colour);
  const label = element(lane, "span", "label");
  label.textContent = duration(row.l);
  if (clamp(right) < 84) label.style.left = `calc(${clamp(right)}% + 6px)`;
  else if (clamp(left) > 16) label.style.right = `calc(${100 - clamp(left)}% + 4px)`;
  else {
    label.classList.add("inside");
    label.style.left = `calc(${clamp(left)}% + 6px)`;
  }
}

// Hatches the part of a bar after the end of its parent.
function hatch(chart, lane, start, end) {
  const left = clamp(position(chart, start));
  const made = element(lane, "div", "after");
  made.dataset.testid = "waterfall-after";
  made.style.left = `${left}%`;
  made.style.width = `max(2px, ${clamp(position(chart, end)) - left}%)`;
}

function drawCritical(chart, lane, start, length) {
  const left = clamp(position(chart, start));
  const width = clamp(position(chart, start + length)) - left;
  if (width <= 0) return;
  const made = element(lane, "div", "critical-interval");
  made.dataset.testid = "waterfall-critical";
  made.style.left = `${left}%`;
  made.style.width = `max(1px, ${width}%)`;
}

function dot(chart, lane, time, kind, colour) {
  const left = position(chart, time);
  if (left < 0 || left > 100) return;
  const made = element(lane, "div", kind);
  made.dataset.testid = `waterfall-${kind.split(" ")[0]}`;
  made.style.left = `${left}%`;
  if (colour) made.style.background = colour;
}

function drawRuler(chart) {
  for (const old of chart.ruler.querySelectorAll(".time")) old.remove();
  const whole = chart.data.length;
  for (let quarter = 0; quarter <= 4; quarter += 1) {
    const time = element(chart.ruler, "span", "time");
    time.style.left = `${quarter * 25}%`;
    time.textContent = duration(whole * (chart.from + ((chart.to - chart.from) * quarter) / 4));
  }
}

// Returns the horizontal position of a time, in percent.
function position(chart, micros) {
  return ((micros / chart.data.length - chart.from) / (chart.to - chart.from)) * 100;
}

function clamp(percent) {
  return Math.min(100, Math.max(0, percent));
}

function onClick(chart, event) {
  const made = event.target.closest(".row");
  if (!made) return;
  const at = Number(made.dataset.at);
  chart.active = chart.open.indexOf(at);
  const row = chart.data.rows[at];
  if (!row.h || event.target.closest(".twist")?.textContent) toggle(chart, row);
  else choose(chart, row);
}

function onKey(chart, event) {
  const row = chart.data.rows[chart.open[chart.active]];
  const isClosed = chart.closed.has(nameOf(row));
  if (event.key === "ArrowDown") move(chart, chart.active + 1);
  else if (event.key === "ArrowUp") move(chart, chart.active - 1);
  else if (event.key === "ArrowRight" && isClosed) toggle(chart, row);
  else if (event.key === "ArrowLeft" && row.b && !isClosed) toggle(chart, row);
  else if (event.key === "Enter" && row.h) choose(chart, row);
  else return;
  event.preventDefault();
}

function move(chart, line) {
  chart.active = Math.min(chart.open.length - 1, Math.max(0, line));
  const top = chart.active * ROW;
  if (top < chart.scroller.scrollTop) chart.scroller.scrollTop = top;
  const bottom = chart.scroller.scrollTop + chart.scroller.clientHeight;
  if (top + ROW > bottom) chart.scroller.scrollTop = top + ROW - chart.scroller.clientHeight;
  draw(chart);
}

function choose(chart, row) {
  chart.picked = row.h;
  draw(chart);
  chart.pick(row.h);
}

function toggle(chart, row) {
  if (!chart.closed.delete(nameOf(row)) && row.b) chart.closed.add(nameOf(row));
  arrange(chart);
}

function setAll(chart, isClosed) {
  chart.closed = new Set(isClosed ? chart.data.rows.filter((row) => row.b && row.d > 0).map(nameOf) : []);
  chart.active = 0;
  arrange(chart);
}

function goToNextError(chart) {
  const from = chart.open[chart.active] ?? -1;
  const at = chart.errors.find((error) => error > from) ?? chart.errors[0];
  reveal(chart, at);
  arrange(chart);
  scrollToRow(chart, at);
  choose(chart, chart.data.rows[at]);
}

// Expands all ancestors of a row.
function reveal(chart, at) {
  for (let above = 0; above < at; above += 1) {
    const row = chart.data.rows[above];
    if (above + row.b >= at) chart.closed.delete(nameOf(row));
  }
  chart.revealed = at;
}

function scrollToRow(chart, at) {
  chart.active = Math.max(0, chart.open.indexOf(at));
  chart.scroller.scrollTop = (chart.active - VISIBLE_ROWS_MAX / 2) * ROW;
  draw(chart);
}

function enableBrush(chart) {
  let start = null;
  const share = (event) => {
    const box = chart.ruler.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  chart.ruler.addEventListener("pointerdown", (event) => {
    start = share(event);
    chart.ruler.setPointerCapture(event.pointerId);
  });
  chart.ruler.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const [left, right] = [start, share(event)].sort((a, b) => a - b);
    chart.brush.style.left = `${left * 100}%`;
    chart.brush.style.width = `${(right - left) * 100}%`;
  });
  chart.ruler.addEventListener("pointerup", (event) => {
    const [left, right] = [start ?? 0, share(event)].sort((a, b) => a - b);
    start = null;
    chart.brush.style.width = "0";
    const width = chart.to - chart.from;
    if (right - left > 0.01) zoom(chart, chart.from + left * width, chart.from + right * width);
  });
  chart.ruler.addEventListener("dblclick", () => zoom(chart, 0, 1));
}

// Shows a part of the time, given as fractions of the trace.
function zoom(chart, from, to) {
  [chart.from, chart.to] = [from, to];
  arrange(chart);
}

function describe(chart, row) {
  const lines = [row.n];
  if (row.v !== undefined) lines.push(`${chart.data.services[row.v][0]}, ${chart.data.kinds[row.k ?? 0]}`);
  lines.push(`starts at ${duration(row.s)}, takes ${duration(row.l)}`);
  const critical = (row.c ?? []).reduce((sum, [, length]) => sum + length, 0);
  if (critical) lines.push(`${duration(critical)} of it on the critical path`);
  if (row.a > row.s) lines.push(`asynchronous: continues for ${duration(row.s + row.l - row.a)} after its parent ended`);
  else if (row.a !== undefined) lines.push(`asynchronous: starts ${duration(row.s - row.a)} after its parent ended`);
  if (row.o) lines.push(row.o);
  return lines.join("\n");
}

function duration(micros) {
  if (micros < 1000) return `${micros.toFixed(0)} µs`;
  const ms = micros / 1000;
  if (ms < 1000) return ms < 100 ? `${ms.toFixed(1)} ms` : `${ms.toFixed(0)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(2)} s`;
  return seconds < 3600
    ? `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`
    : `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

function element(parent, tag, name) {
  const made = document.createElement(tag);
  made.className = name;
  parent.append(made);
  return made;
}

function mark(cell, name, text, testid) {
  const made = element(cell, "span", `mark ${name}`);
  made.textContent = text;
  made.dataset.testid = testid;
}

function button(chart, testid, text, onclick) {
  const made = element(chart.tools, "button", "tool");
  made.type = "button";
  made.textContent = text;
  made.dataset.testid = `waterfall-${testid}`;
  made.addEventListener("click", onclick);
  return made;
}
