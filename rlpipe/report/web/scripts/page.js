"use strict";
// What every section may use: its data, the colours of the present theme, and the change of the theme.
const rlpipePage = (() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);

  /** Returns the data of a section. */
  function data(id) {
    const element = document.getElementById(`data-${id}`);
    return element === null ? {} : JSON.parse(element.textContent);
  }

  /** Returns a colour of the style sheet in the present theme, as rgb(): a canvas knows no variables. */
  function colour(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }

  function isDark() {
    return (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  }

  /** Tells everything that is drawn to draw itself again: listen to "themechange" on the document. */
  function announce() {
    document.dispatchEvent(new CustomEvent("themechange", { detail: { dark: isDark() } }));
  }

  function choose(theme) {
    root.dataset.theme = theme;
    try { localStorage.setItem("rlpipe-theme", theme); } catch { /* then it is forgotten */ }
    announce();
  }

  const toggle = document.getElementById("theme-toggle");
  toggle.hidden = false;
  toggle.addEventListener("click", () => choose(isDark() ? "light" : "dark"));
  dark.addEventListener("change", announce);

  // Paper is white.
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; announce(); });
  addEventListener("afterprint", () => {
    if (before === undefined) delete root.dataset.theme; else root.dataset.theme = before;
    announce();
  });

  // Marks the section that is being read.
  const links = new Map([...document.querySelectorAll(".page-nav a")].map((a) => [a.hash.slice(1), a]));
  const visible = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) visible[entry.isIntersecting ? "add" : "delete"](entry.target.id);
    const first = [...links.keys()].find((id) => visible.has(id));
    for (const [id, link] of links) {
      if (id === first) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-64px 0px -55% 0px" });
  for (const section of document.querySelectorAll("main > section")) watcher.observe(section);

  return { data, colour, isDark };
})();
