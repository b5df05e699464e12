const states = new WeakMap();

function begin(row) {
  const state = { isExpanded: false };
  state.more = make("button", "more", "", "facets-more");
  state.more.type = "button";
  state.more.onclick = () => { state.isExpanded = !state.isExpanded; fit(row, state); };
  new ResizeObserver(() => fit(row, state)).observe(row);
  return state;
}

// Shows the chips that fit into one line, unless the user wants to see all.
function fit(row, state) {
  const chips = [...row.querySelectorAll("[data-testid=facet]")];
  for (const chip of chips) chip.hidden = false;
  state.more.hidden = false;
  state.more.textContent = `+${chips.length} more`;
  const gap = parseFloat(getComputedStyle(row).columnGap);
  const widths = chips.map((chip) => chip.offsetWidth + gap);
  const lineWidth = row.clientWidth + gap;
  if (widths.reduce((sum, width) => sum + width, 0) <= lineWidth) {
    state.more.hidden = true;
  } else if (state.isExpanded) {
    state.more.textContent = "Show fewer";
  } else {
    let used = state.more.offsetWidth + gap;
    const fitting = widths.findIndex((width) => (used += width) > lineWidth);
    for (const chip of chips.slice(Math.max(1, fitting))) chip.hidden = true;
    state.more.textContent = `+${chips.length - Math.max(1, fitting)} more`;
  }
}

export default function ({ data, parentElement, setTriggerValue }) {
  const row = parentElement.querySelector(".facets");
  if (!states.has(row)) states.set(row, begin(row));
  const state = states.get(row);
  row.replaceChildren(...data.map((given) => {
    const chip = make("button", "", undefined, "facet");
    chip.type = "button";
    chip.dataset.name = given.name;
    chip.setAttribute("aria-pressed", given.chosen);
    chip.onclick = () => setTriggerValue("toggle", given.name);
    const dot = make("i");
    dot.style.background = given.colour;
    chip.append(dot, make("span", "", given.name), make("span", "count", short(given.count)));
    return chip;
  }), state.more);
  fit(row, state);
}
