const SVG = "http://www.w3.org/2000/svg";
const SPARK = [88, 20];
const COLUMNS = [
  ["service", "Service"],
  ["traffic", "Traffic"],
  ["rate", "Requests"],
  ["failed", "Failed"],
  ["p50", "p50"],
  ["p99", "p99"],
  ["version", "Version"],
  ["seen", "Last seen"],
];
const SORTABLE = ["service", "rate", "failed", "p50", "p99"];
const states = new WeakMap();

export default function ({ data, parentElement, setTriggerValue }) {
  const frame = parentElement.querySelector(".frame");
  if (!states.has(frame)) states.set(frame, { frame, sort: null, isUp: false });
  const state = states.get(frame);
  state.data = data;
  state.open = (name) => setTriggerValue("opened", name);
  draw(state);
}

function draw(state) {
  const hasVersions = state.data.some((service) => service.version || service.seen);
  const columns = hasVersions ? COLUMNS : COLUMNS.slice(0, 6);
  state.frame.classList.toggle("versions", hasVersions);
  const focused = state.frame.getRootNode().activeElement?.dataset.name;
  state.frame.replaceChildren(head(state, columns), ...sorted(state).map((service) => row(state, service, columns)));
  if (focused !== undefined) [...state.frame.querySelectorAll("[data-name]")].find((each) => each.dataset.name === focused)?.focus();
}

function sorted(state) {
  if (!state.sort) return state.data;
  const value = (service) => (state.sort === "service" ? service.name : service[state.sort][1]);
  const order = state.isUp ? 1 : -1;
  return [...state.data].sort((a, b) => {
    const [left, right] = [value(a), value(b)];
    if (left === right) return 0;
    if (left === null || right === null) return left === null ? 1 : -1;
    return (left < right ? -1 : 1) * order;
  });
}

function head(state, columns) {
  const made = make("div", "row head");
  for (const [name, title] of columns) {
    const isSortable = SORTABLE.includes(name);
    const cell = make(isSortable ? "button" : "div", `cell ${name}`, title);
    if (isSortable) {
      cell.type = "button";
      cell.dataset.name = `sort ${name}`;
      if (state.sort === name) cell.textContent = `${title} ${state.isUp ? "↑" : "↓"}`;
      cell.onclick = () => {
        state.isUp = state.sort === name ? !state.isUp : name === "service";
        state.sort = name;
        draw(state);
      };
    }
    made.append(cell);
  }
  return made;
}

function row(state, service, columns) {
  const made = make(service.address ? "a" : "div", "row service", undefined, "service-row");
  made.dataset.name = service.name;
  if (service.address) {
    made.href = service.address;
    made.onclick = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
      event.preventDefault();
      state.open(service.name);
    };
  }
  for (const [name] of columns) made.append(cellOf(service, name));
  return made;
}

function cellOf(service, name) {
  const cell = make("div", `cell ${name}`);
  if (name === "service") {
    const colour = make("span", "colour");
    colour.style.background = service.colour;
    cell.append(colour, make("span", "name", service.name));
    cell.title = service.name;
  } else if (name === "traffic") {
    cell.append(spark(service.traffic, service.colour));
  } else if (name === "failed") {
    const [text, share] = service.failed;
    const bar = make("span", `bar ${service.level}`);
    bar.style.width = share ? `${Math.max(3, Math.min(1, share) * 100)}%` : "0";
    cell.append(bar, make("span", "text", text));
  } else if (name === "version") {
    cell.textContent = service.version;
    cell.title = service.version_title;
  } else {
    cell.textContent = name === "seen" ? service.seen : service[name][0];
  }
  return cell;
}

function spark(values, colour) {
  const [width, height] = SPARK;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const top = Math.max(...values, 0);
  if (top > 0 && values.length > 1) {
    const points = values.map((value, at) =>
      `${((at / (values.length - 1)) * width).toFixed(1)},${(height - 1 - (value / top) * (height - 2)).toFixed(1)}`);
    const area = document.createElementNS(SVG, "path");
    area.setAttribute("d", `M0,${height} L${points.join(" L")} L${width},${height} Z`);
    area.style.fill = colour;
    area.style.opacity = 0.3;
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", points.join(" "));
    line.style.stroke = colour;
    svg.append(area, line);
  }
  return svg;
}
