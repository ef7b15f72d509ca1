"use strict";
// Episodes one by one: a table to sort and filter, a scatter, and a grid of evaluations by start.
(() => {
  const data = rlpipePage.data("episodes");
  const PAGE = 25;

  function rowsOf(columns) {
    const names = Object.keys(columns);
    return columns[names[0]].map((_, n) => Object.fromEntries(names.map((name) => [name, columns[name][n]])));
  }

  const text = (value) => (value === null || value === undefined ? "–" : value === true ? "yes" : value === false ? "no" : typeof value === "number" ? rlpipeCharts.number(value) : value);

  /** Sorts by a key; what has no value comes last either way. */
  function sorted(rows, key, down) {
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
    return [...rows].sort((one, other) => {
      const a = one[key], b = other[key];
      if (a === null || b === null) return (a === null) - (b === null);
      return down ? -compare(a, b) : compare(a, b);
    });
  }

  function table(root, rows, first) {
    const body = root.querySelector("tbody"), count = root.querySelector(".count");
    const [back, on] = root.querySelectorAll(".pages button");
    const heads = [...root.querySelectorAll("th[data-key]")];
    const outcome = root.querySelector("[data-filter=outcome]"), task = root.querySelector("[data-filter=task]");
    let key = first, down = true, page = 0;

    function draw() {
      const kept = rows.filter((row) => (
        (!outcome?.value || String(row.success_once) === outcome.value) && (!task?.value || row.task === task.value)));
      const found = sorted(kept, key, down);
      const pages = Math.max(1, Math.ceil(found.length / PAGE));
      page = Math.min(page, pages - 1);
      const shown = found.slice(page * PAGE, (page + 1) * PAGE);
      body.replaceChildren(...shown.map((row) => {
        const line = document.createElement("tr");
        for (const head of heads) {
          const cell = document.createElement("td"), value = row[head.dataset.key];
          cell.className = head.className;
          if (head.dataset.key === "success_once" && value !== null) {
            const badge = document.createElement("span");
            badge.className = `badge ${value ? "good" : "bad"}`;
            badge.textContent = value ? "success" : "failure";
            cell.append(badge);
          } else cell.textContent = head.dataset.key === "seed" && value !== null ? String(value) : text(value);
          line.append(cell);
        }
        return line;
      }));
      const from = found.length ? page * PAGE + 1 : 0;
      count.textContent = `${from.toLocaleString("en")} to ${(page * PAGE + shown.length).toLocaleString("en")} of ${found.length.toLocaleString("en")}`;
      back.disabled = page === 0;
      on.disabled = page >= pages - 1;
      for (const head of heads) head.setAttribute("aria-sort", head.dataset.key === key ? (down ? "descending" : "ascending") : "none");
    }

    for (const head of heads) {
      head.querySelector("button").addEventListener("click", () => {
        down = head.dataset.key === key ? !down : false;
        key = head.dataset.key;
        page = 0;
        draw();
      });
    }
    for (const filter of [outcome, task]) filter?.addEventListener("change", () => { page = 0; draw(); });
    back.addEventListener("click", () => { page -= 1; draw(); });
    on.addEventListener("click", () => { page += 1; draw(); });
    draw();
  }

  const listed = document.getElementById("episode-table");
  if (listed !== null) table(listed, rowsOf(data.listed), "iteration");

  const scatter = document.getElementById("episode-scatter");
  if (scatter !== null) {
    const rows = rowsOf(data.points), choice = document.getElementById("episode-scatter-y");
    const kinds = [[true, "success", "series-3"], [false, "failure", "series-2"], [null, "episode", "series-1"]];
    const draw = () => kinds.flatMap(([outcome, label, colour]) => {
      const found = rows.filter((row) => row.success_once === outcome && row[choice.value] !== null);
      return found.length ? [{ label, colour, rows: found }] : [];
    });
    // Episodes may share a position, which an axis of lines has only once: the points are drawn one by one.
    const chart = rlpipeCharts.chart(scatter, options());
    function options() {
      const found = draw(), all = found.flatMap((kind) => kind.rows);
      const ys = all.map((row) => row[choice.value]), xs = all.map((row) => row.steps);
      const low = Math.min(...ys), high = Math.max(...ys);
      return {
        axis: "steps", height: 280, label: choice.selectedOptions[0].dataset.label,
        range: () => (low === high ? [low - 1, high + 1] : uPlot.rangeNum(low, high, 0.06, false)),
        series: [{ label: "", x: [0, Math.max(1, ...xs)], y: [low, high], colour: "muted", width: 0, points: false, quiet: true }],
        clouds: found.map(({ colour, rows: some }) => ({ colour, x: some.map((row) => row.steps), y: some.map((row) => row[choice.value]) })),
      };
    }
    choice.addEventListener("change", () => chart.update(options()));
  }

  // grid of evaluations
  const grid = document.getElementById("evaluation-grid");
  if (grid !== null) {
    const canvas = grid.querySelector("canvas"), readout = document.getElementById("evaluation-readout");
    const { evaluations, seeds } = data.evaluations;
    const draw = () => {
      const ratio = devicePixelRatio, width = grid.clientWidth;
      const tall = Math.max(5, Math.min(18, Math.floor(260 / evaluations.length)));
      canvas.style.height = `${tall * evaluations.length}px`;
      canvas.width = width * ratio;
      canvas.height = tall * evaluations.length * ratio;
      const ink = canvas.getContext("2d"), wide = canvas.width / seeds.length, high = tall * ratio;
      const gap = wide > 4 * ratio ? ratio : 0;
      const colours = { 1: rlpipeCharts.alpha(rlpipePage.colour("series-3"), 0.45), 0: rlpipePage.colour("series-2"), "-": rlpipePage.colour("sunken") };
      evaluations.forEach((one, row) => [...one.outcomes].forEach((outcome, column) => {
        ink.fillStyle = colours[outcome];
        ink.fillRect(column * wide, row * high, Math.max(wide - gap, 0.5), high - ratio);
      }));
    };
    canvas.addEventListener("mousemove", (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.min(seeds.length - 1, Math.floor((event.clientX - box.left) / box.width * seeds.length));
      const row = Math.min(evaluations.length - 1, Math.floor((event.clientY - box.top) / box.height * evaluations.length));
      const outcome = { 1: "success", 0: "failure", "-": "not run" }[evaluations[row].outcomes[column]];
      readout.textContent = `seed ${seeds[column]} after iteration ${evaluations[row].iteration}: ${outcome}`;
    });
    canvas.addEventListener("mouseleave", () => { readout.textContent = readout.dataset.rest; });
    new ResizeObserver(draw).observe(grid);
    document.addEventListener("themechange", draw);
  }
})();
