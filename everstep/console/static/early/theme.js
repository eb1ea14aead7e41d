// Runs before the first paint, so that a page in the chosen theme never flashes in the other one.
(() => {
  try {
    const chosen = localStorage.getItem("everstep.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is forbidden here: the theme of the system applies.
  }
})();
