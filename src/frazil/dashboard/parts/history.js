// Makes every click one step of the Back button. Streamlit adds an entry to the browser's history for each
// parameter of the URL that the server changes.

export default function () {
  if (window.frazilHistory) return;
  window.frazilHistory = { actions: 0, pushed: 0 };
  const state = window.frazilHistory;
  for (const kind of ["pointerdown", "keydown", "popstate"])
    window.addEventListener(kind, () => { state.actions += 1; }, true);
  const push = history.pushState.bind(history);
  history.pushState = (...entry) => {
    if (state.pushed === state.actions) return history.replaceState(...entry);
    state.pushed = state.actions;
    return push(...entry);
  };
}
