// The list is updated in place, row by row, so that rows do not move or flicker when records arrive.

const states = new WeakMap();

function button(label, testid, title, click) {
  const node = make("button", "", label, testid);
  node.type = "button";
  if (title) node.title = title;
  node.onclick = (event) => { event.stopPropagation(); click(node); };
  return node;
}

function begin(frame) {
  const state = { act: () => {}, rows: new Map(), opened: null, detailOf: null, requested: undefined, newCount: 0 };
  frame.dataset.testid = "records";
  state.dot = make("span", "dot");
  state.summary = make("span", "summary", "", "records-status");
  state.warning = make("span", "warning", "", "records-warning");
  state.pause = button("Pause", "records-pause", "", () => state.act("pause"));
  state.newest = button("Back to newest", "records-newest", "", () => state.act("newest"));
  const bar = make("div", "bar");
  state.jump = button("", "records-fresh", "", () => { state.list.scrollTop = 0; markSeen(state); });
  state.jump.className = "fresh";
  bar.append(state.dot, state.summary, state.warning, state.jump, state.newest, state.pause);
  state.list = make("div", "list", undefined, "records-list");
  state.list.setAttribute("role", "list");
  state.list.onscroll = () => { if (state.list.scrollTop < 4) markSeen(state); };
  state.list.onkeydown = (event) => move(state, event);
  state.body = make("div");
  state.none = make("div", "none", "Waiting for records…", "records-none");
  state.older = button("Older records", "records-older", "", () => state.act("older"));
  const foot = make("div", "foot");
  foot.append(state.older);
  state.list.append(state.none, state.body, foot);
  frame.replaceChildren(bar, state.list);
  return state;
}

function markSeen(state) {
  state.newCount = 0;
  state.jump.hidden = true;
}

function move(state, event) {
  const row = event.target.closest?.(".row");
  if (!row || event.target !== row) return;
  if (event.key === "Enter" || event.key === " ") row.click();
  else if (event.key === "ArrowDown") siblingRow(row, "nextElementSibling")?.focus();
  else if (event.key === "ArrowUp") siblingRow(row, "previousElementSibling")?.focus();
  else if (event.key === "Escape" && state.opened) state.act("open", "");
  else return;
  event.preventDefault();
}

function siblingRow(row, direction) {
  let other = row[direction];
  while (other && !other.classList.contains("row")) other = other[direction];
  return other;
}

function drawRow(state, given, data) {
  const row = make("div", "row", undefined, "record");
  row.dataset.key = given.key;
  row.dataset.level = given.level;
  row.setAttribute("role", "listitem");
  row.tabIndex = 0;
  const edge = make("span", "edge");
  edge.style.background = data.levels[given.level];
  const level = make("span", "level", given.level === "unset" ? "" : given.level);
  level.style.setProperty("--tint", data.levels[given.level]);
  const service = make("span", "service", given.service, "record-service");
  service.style.setProperty("--tint", data.services[given.service]);
  service.title = given.service;
  const text = make("span", "text", undefined, "record-text");
  row.append(edge, make("span", "time", given.time), level, service, text);
  row.onclick = () => {
    if (String(getSelection()).length) return; // the user is selecting text
    const key = state.opened === given.key ? "" : given.key;
    open(state, key);
    state.act("open", key);
  };
  return row;
}

function drawText(row, parts) {
  const text = row.querySelector(".text");
  const written = parts.join("\u0002");
  if (text.dataset.written === written) return;
  text.dataset.written = written;
  text.replaceChildren(...parts.map((part, at) => (at % 2 ? make("mark", "", part) : document.createTextNode(part))));
}

function drawRows(state, data) {
  const kept = new Map();
  let before = null;
  let added = 0;
  const first = state.rows.keys().next().value;
  let isAbove = first !== undefined;
  for (const given of data.rows) {
    if (given.key === first) isAbove = false;
    let row = state.rows.get(given.key);
    if (!row) {
      row = drawRow(state, given, data);
      if (isAbove) added += 1;
    }
    drawText(row, given.text);
    const after = before ? before.nextSibling : state.body.firstChild;
    if (after !== row) state.body.insertBefore(row, after);
    kept.set(given.key, row);
    before = row;
  }
  for (const [key, row] of state.rows) if (!kept.has(key)) row.remove();
  const isReplaced = [...state.rows.keys()].every((key) => !kept.has(key));
  state.rows = kept;
  return isReplaced ? null : added;
}

// The row that keeps its position on the screen: the open one, else the first visible one.
function anchor(state) {
  const opened = state.opened && state.rows.get(state.opened);
  if (state.list.scrollTop < 4 && !opened) return null;
  const top = state.list.getBoundingClientRect().top;
  const rows = opened ? [opened] : [...state.rows.values()];
  const row = rows.find((one) => one.getBoundingClientRect().bottom > top);
  return row ? { row, top: row.getBoundingClientRect().top } : null;
}

function open(state, key) {
  state.opened = key || null;
  state.requested = state.opened;
  state.requestedAt = Date.now();
  for (const [other, row] of state.rows) row.classList.toggle("open", other === state.opened);
  if (state.detail && state.detailOf !== state.opened) {
    state.detail.remove();
    state.detail = null;
    state.detailOf = null;
  }
}

function drawDetail(state, data) {
  const given = data.opened;
  // A recent click takes precedence until the server has responded to it.
  if (state.requested !== undefined && Date.now() - state.requestedAt < 10000) {
    if ((given?.key ?? null) !== state.requested) return false;
    state.requested = undefined;
  }
  const key = given?.key ?? null;
  const row = key && state.rows.get(key);
  open(state, key);
  state.requested = undefined;
  if (!given || !row) return false;
  const isReplaced = state.detailOf !== key;
  const json = JSON.stringify(given);
  if (!state.detail || state.drawnJson !== json) {
    const made = makeDetail(state, given, data);
    state.detail?.remove();
    state.detail = made;
    state.detailOf = key;
    state.drawnJson = json;
  }
  if (row.nextSibling !== state.detail) row.after(state.detail);
  return isReplaced;
}

// As much of the detail as fits, and its row. The page itself does not scroll.
function intoView(state) {
  const list = state.list.getBoundingClientRect();
  const above = state.rows.get(state.detailOf).getBoundingClientRect().top - list.top;
  const below = state.detail.getBoundingClientRect().bottom - list.bottom;
  if (below > 0) state.list.scrollTop += Math.min(above, below);
}

function makeDetail(state, given, data) {
  const detail = make("div", "detail", undefined, "record-detail");
  const actions = make("div", "actions");
  actions.append(button("Copy as JSON", "record-copy", "", (node) => copy(node, given.json)));
  if (given.trace) {
    const link = make("a", "button", "Open trace", "record-trace");
    link.href = data.trace_address + encodeURIComponent(given.trace) + (given.span ? `&span=${encodeURIComponent(given.span)}` : "");
    actions.append(link);
    actions.append(button("Logs of this trace", "record-trace-logs", "", () => state.act("filter", `trace_id=${given.trace}`)));
  }
  actions.append(button("Close", "record-close", "", () => { open(state, ""); state.act("open", ""); }));
  detail.append(actions);
  if (given.body) {
    const body = make("pre", "body", given.body, "record-body");
    body.title = `body: ${given.body_kind}`;
    detail.append(body);
  }
  const groups = make("div", "groups");
  for (const group of given.groups) groups.append(makeGroup(state, group));
  detail.append(groups);
  return detail;
}

function makeGroup(state, group) {
  const made = make("div", "group", undefined, `record-${group.name.toLowerCase()}`);
  made.append(make("h4", "", group.name));
  const isTyped = group.rows.some((row) => row.kind);
  for (const row of group.rows) {
    const pair = make("div", isTyped ? "pair" : "pair plain");
    pair.dataset.name = row.name;
    pair.append(breakable(make("span", "name"), row.name));
    if (isTyped) pair.append(make("span", "kind", row.kind, "record-kind"));
    pair.append(make("span", "value", row.value));
    if (row.filter) {
      const only = button("+", "record-filter", `Only records with ${row.name} = ${row.value.slice(0, 80)}`, () =>
        state.act("filter", row.filter));
      only.setAttribute("aria-label", `Filter for ${row.name}`);
      pair.append(only);
    }
    made.append(pair);
  }
  return made;
}

async function copy(node, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // the clipboard API needs TLS
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  node.textContent = "Copied";
  setTimeout(() => { node.textContent = "Copy as JSON"; }, 1500);
}

export default function ({ data, parentElement, setTriggerValue }) {
  const frame = parentElement.querySelector(".frame");
  if (!states.has(frame)) states.set(frame, begin(frame));
  const state = states.get(frame);
  state.act = (what, about) => setTriggerValue("action", { do: what, what: about ?? null });
  const kept = anchor(state);
  const added = drawRows(state, data);
  const isReplaced = drawDetail(state, data);
  if (added === null) {
    state.list.scrollTop = 0;
    markSeen(state);
  } else if (kept && kept.row.isConnected) {
    state.list.scrollTop += kept.row.getBoundingClientRect().top - kept.top;
    state.newCount += added;
  }
  if (isReplaced || (added === null && state.detail)) intoView(state);
  if (state.list.scrollTop < 4) markSeen(state);
  state.jump.hidden = state.newCount === 0;
  state.jump.textContent = `${state.newCount} new ↑`;
  state.summary.textContent = data.summary;
  state.summary.title = data.summary;
  state.warning.textContent = data.warning;
  state.warning.title = data.warning;
  state.warning.hidden = !data.warning;
  state.dot.hidden = data.tailing === null;
  state.dot.classList.toggle("paused", data.tailing === false);
  state.pause.hidden = data.tailing === null;
  state.pause.textContent = data.tailing === false ? "Resume" : "Pause";
  state.newest.hidden = !data.is_frozen;
  state.older.hidden = !data.has_older;
  state.none.hidden = data.rows.length > 0;
}
