const FOOT = 18;
const LEFT = 40;
const SVG = "http://www.w3.org/2000/svg";
const TICKS_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const states = new WeakMap();

function shape(tag, given, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function begin(frame) {
  const state = { from: null };
  frame.dataset.testid = "histogram";
  state.total = make("span", "total", "", "histogram-total");
  state.legend = make("span", "legend");
  state.hint = make("span", "hint", "Drag to zoom in");
  state.zoomOut = make("button", "", "Zoom out", "histogram-wider");
  state.zoomOut.onclick = () => {
    const { from, to } = state.scale;
    state.zoom(from - (to - from), Math.min(to + (to - from), Math.max(to, Date.now())));
  };
  const head = make("div", "head");
  head.append(state.total, state.legend, state.hint, state.zoomOut);
  state.plot = make("div", "plot", undefined, "histogram-plot");
  state.svg = shape("svg", { role: "img" });
  state.brush = make("div", "brush");
  state.tooltip = make("div", "tip", undefined, "histogram-tip");
  state.brush.hidden = state.tooltip.hidden = true;
  state.plot.append(state.svg, state.brush, state.tooltip);
  state.plot.onpointerdown = (event) => {
    state.from = plotX(state, event);
    state.plot.setPointerCapture(event.pointerId);
  };
  state.plot.onpointermove = (event) => { drawBrush(state, event); drawTooltip(state, event); };
  state.plot.onpointerup = (event) => selectRange(state, event);
  state.plot.onpointercancel = () => { state.from = null; state.brush.hidden = true; };
  state.plot.onpointerleave = () => { state.tooltip.hidden = true; };
  frame.replaceChildren(head, state.plot);
  state.watch = new ResizeObserver(() => draw(state));
  state.watch.observe(state.plot);
  return state;
}

function plotX(state, event) {
  const box = state.plot.getBoundingClientRect();
  return Math.min(Math.max(event.clientX - box.left, LEFT), box.width);
}

function timeAt(state, x) {
  const { from, to, width } = state.scale;
  return from + ((x - LEFT) / (width - LEFT)) * (to - from);
}

function drawBrush(state, event) {
  if (state.from === null) return;
  const x = plotX(state, event);
  state.brush.hidden = Math.abs(x - state.from) < 4;
  state.brush.style.left = `${Math.min(x, state.from)}px`;
  state.brush.style.width = `${Math.abs(x - state.from)}px`;
}

function selectRange(state, event) {
  if (state.from === null) return;
  const ends = [state.from, plotX(state, event)].sort((a, b) => a - b);
  state.from = null;
  state.brush.hidden = state.tooltip.hidden = true;
  if (ends[1] - ends[0] >= 4) {
    state.zoom(timeAt(state, ends[0]), timeAt(state, ends[1]));
    return;
  }
  const { first, step } = state.scale; // a click selects the bar
  const start = first + Math.floor((timeAt(state, ends[0]) - first) / step) * step;
  if (step > 1000) state.zoom(start, start + step);
}

function drawTooltip(state, event) {
  const { first, step, buckets, width } = state.scale;
  const x = plotX(state, event);
  const at = Math.floor((timeAt(state, x) - first) / step);
  if (at < 0 || at >= buckets || event.clientX < state.plot.getBoundingClientRect().left + LEFT) {
    state.tooltip.hidden = true;
    return;
  }
  const start = new Date(first + at * step);
  const lines = [make("div", "", `${label(start, step, true)} UTC`)];
  for (const series of state.data.series) {
    if (!series.counts[at]) continue;
    const line = make("div", "", "");
    const dot = make("i");
    dot.style.background = series.colour;
    line.append(dot, document.createTextNode(`${series.name} ${series.counts[at].toLocaleString("en")}`));
    lines.push(line);
  }
  if (lines.length === 1) lines.push(make("div", "", "none"));
  state.tooltip.replaceChildren(...lines);
  state.tooltip.hidden = false;
  const room = state.tooltip.offsetWidth;
  state.tooltip.style.left = `${x + room + 16 > width ? x - room - 12 : x + 12}px`;
}

function label(time, step, isFull) {
  const iso = time.toISOString();
  if (step >= 86400e3) return iso.slice(5, 10);
  const clock = isFull || step < 60e3 ? iso.slice(11, 19) : iso.slice(11, 16);
  return isFull || clock === "00:00" ? `${iso.slice(5, 10)} ${clock}` : clock;
}

function draw(state) {
  const { data } = state;
  const width = state.plot.clientWidth;
  const height = state.plot.clientHeight - FOOT;
  if (!data || !width) return;
  const step = data.step_seconds * 1000;
  const first = Date.parse(data.first);
  const [from, to] = [Date.parse(data.from), Date.parse(data.to)];
  const buckets = Math.max(...data.series.map((series) => series.counts.length), Math.ceil((to - first) / step));
  state.scale = { from, to, first, step, buckets, width };
  const x = (time) => LEFT + (Math.min(Math.max(time, from), to) - from) / (to - from) * (width - LEFT);
  const sums = Array.from({ length: buckets }, (_, at) => data.series.reduce((sum, series) => sum + (series.counts[at] || 0), 0));
  const top = Math.max(1, ...sums);
  const drawn = [shape("line", { x1: LEFT, x2: width, y1: height + 0.5, y2: height + 0.5 })];
  drawn.push(shape("text", { x: LEFT - 6, y: 10, "text-anchor": "end" }, data.total ? short(top) : ""));
  for (let at = 0; at < buckets; at += 1) {
    const [left, right] = [x(first + at * step), x(first + (at + 1) * step)];
    let base = height;
    for (const series of data.series) {
      const count = series.counts[at];
      if (!count) continue;
      const barHeight = Math.max(1, (count / top) * (height - 4));
      drawn.push(shape("rect", { x: left, y: base - barHeight, width: Math.max(1, right - left - 1), height: barHeight, fill: series.colour }));
      base -= barHeight;
    }
  }
  drawn.push(...ticks(from, to, width, height, x));
  state.svg.replaceChildren(...drawn);
  state.svg.setAttribute("aria-label", `${data.total} ${data.noun} over time`);
}

function ticks(from, to, width, height, x) {
  const room = Math.max(2, Math.floor((width - LEFT) / 110));
  const step = (TICKS_SECONDS.find((seconds) => (to - from) / 1000 / seconds <= room) ?? 2592000) * 1000;
  const drawn = [];
  for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
    const at = x(time);
    if (at < LEFT + 14 || at > width - 22) continue;
    drawn.push(shape("line", { x1: at, x2: at, y1: height, y2: height + 4 }));
    drawn.push(shape("text", { x: at, y: height + 15, "text-anchor": "middle" }, label(new Date(time), step, false)));
  }
  return drawn;
}

export default function ({ data, parentElement, setTriggerValue }) {
  const frame = parentElement.querySelector(".frame");
  if (!states.has(frame)) states.set(frame, begin(frame));
  const state = states.get(frame);
  state.data = data;
  state.zoom = (from, to) => setTriggerValue("zoom", [from, to]);
  state.total.replaceChildren(document.createTextNode(data.total.toLocaleString("en")), make("small", "", ` ${data.noun}`));
  state.legend.replaceChildren(...data.series.map((series) => {
    const made = make("span", "");
    const dot = make("i");
    dot.style.background = series.colour;
    const sum = series.counts.reduce((all, count) => all + count, 0);
    made.append(dot, document.createTextNode(`${series.name} ${short(sum)}`));
    return made;
  }));
  state.zoomOut.hidden = !data.is_zoomed;
  state.hint.textContent = data.warning || "Drag to zoom in";
  state.hint.title = data.warning;
  state.hint.hidden = data.is_zoomed && !data.warning;
  draw(state);
}
