"use strict";
// Runs before the body exists, so that a page never flashes in the other theme.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("rlpipe-theme"); } catch { /* a browser may forbid it for files */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
