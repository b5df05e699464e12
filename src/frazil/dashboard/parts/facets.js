export default function ({ data, parentElement, setTriggerValue }) {
  const row = parentElement.querySelector(".facets");
  const left = row.scrollLeft;
  row.replaceChildren(...data.map((given) => {
    const chip = make("button");
    chip.type = "button";
    chip.dataset.testid = "facet";
    chip.dataset.name = given.name;
    chip.setAttribute("aria-pressed", given.chosen);
    chip.onclick = () => setTriggerValue("toggle", given.name);
    const dot = make("i");
    dot.style.background = given.colour;
    chip.append(dot, make("span", "", given.name), make("span", "count", short(given.count)));
    return chip;
  }));
  row.scrollLeft = left;
}
