"use strict";
// Success, small multiples and the chooser: the same data over steps, training time or iterations.
(() => {
  const data = rlpipePage.data("curves");
  const { runs, metrics, groups } = data;
  let axis = data.axes[0];
  const redraws = [];

  const colourOf = (run) => `series-${(runs.length === 1 ? 0 : run.group) % 8 + 1}`;

  /** Positions of a series of a run on the present axis. */
  function series(run, name) {
    const found = run.series[name];
    if (found === undefined) return null;
    const places = run.axes[axis];
    return { x: found.at ? found.at.map((row) => places[row]) : places, y: found.y, at: found.at };
  }

  /** Where an iteration ended on the present axis. */
  function placeOf(run, iteration) {
    const row = Math.min(iteration, run.rows) - 1;
    return row < 0 ? 0 : run.axes[axis][row];
  }

  /** Mean, lowest and highest of runs at the positions that all of them have. */
  function pooled(members) {
    const maps = members.map((one) => new Map(one.x.map((x, n) => [x, one.y[n]])));
    const x = members[0].x.filter((place) => maps.every((map) => map.has(place)));
    const at = x.map((place) => maps.map((map) => map.get(place)));
    return {
      x, mean: at.map((values) => values.reduce((sum, value) => sum + value, 0) / values.length),
      low: at.map((values) => Math.min(...values)), high: at.map((values) => Math.max(...values)),
    };
  }

  /** Series and bands of one metric over all runs. */
  function linesOf(name) {
    const lines = [], bands = [];
    groups.forEach((group, index) => {
      const members = runs.filter((run) => run.group === index && run.series[name]);
      const found = members.map((run) => series(run, name));
      const several = members.length > 1;
      if (several) {
        const { x, mean, low, high } = pooled(found);
        if (x.length > 1) {
          const colour = `series-${index % 8 + 1}`;
          bands.push([lines.length + 2, lines.length + 1, colour]);
          lines.push({ label: group, x, y: mean, colour, width: 2 });
          lines.push({ label: `${group} lowest`, x, y: low, colour, width: 0.5, alpha: 0.3, quiet: true, points: false });
          lines.push({ label: `${group} highest`, x, y: high, colour, width: 0.5, alpha: 0.3, quiet: true, points: false });
        }
      }
      members.forEach((run, n) => lines.push({
        label: several ? `${run.short}` : (runs.length > 1 ? group : name), x: found[n].x, y: found[n].y,
        colour: colourOf(run), width: several ? 1 : 1.5, alpha: several ? 0.4 : undefined,
        points: several ? false : found[n].x.length < 40, size: 5,
      }));
    });
    return { lines, bands };
  }

  function marks() {
    if (runs.length > 1) return [];
    return runs[0].marks.map((mark) => ({ ...mark, x: placeOf(runs[0], mark.iteration) }));
  }

  // success
  const success = document.getElementById("success-chart");
  if (success !== null && data.headline !== null) {
    const { training, evaluation, low, high, start } = data.headline;
    const lines = () => {
      if (runs.length > 1) {
        const name = runs.some((run) => run.series[evaluation]) && !runs.some((run) => run.series[training])
          ? evaluation : training;
        return linesOf(name);
      }
      const [run] = runs, found = [], bands = [];
      const pools = run.pools.filter((pool) => pool.success !== null), curriculum = run.elsewhere.length > 0;
      const addPools = (label, colour, of) => {
        if (!of.length) return;
        const at = of.map((pool) => placeOf(run, pool.until)), column = (n) => of.map((pool) => pool.success[n]);
        const note = (n) => (n < 0 ? "" : ` [${column(1).map(rlpipeCharts.number)[n]}, ${column(2).map(rlpipeCharts.number)[n]}] of ${of[n].episodes} episodes`);
        bands.push([found.length + 2, found.length + 1, colour]);
        found.push({ label, x: at, y: column(0), colour, width: 2, points: of.length < 40, size: 5, note });
        found.push({ label: "low", x: at, y: column(1), colour, width: 0.01, alpha: 0.01, quiet: true, points: false });
        found.push({ label: "high", x: at, y: column(2), colour, width: 0.01, alpha: 0.01, quiet: true, points: false });
      };
      addPools(curriculum ? "training, own starts" : "training, pooled", "series-1", pools);
      addPools("training, the curriculum's starts", "series-3", run.elsewhere.filter((pool) => pool.success !== null));
      const begins = series(run, start);
      if (begins !== null) found.push({ label: "where these begin", ...begins, colour: "muted", width: 1, points: false });
      const raw = curriculum ? null : series(run, training);
      if (raw !== null && !(pools.length && pools.every((pool) => pool.first === pool.until))) {
        found.push({ label: "training, this iteration", ...raw, colour: "series-1", width: 1, alpha: pools.length ? 0.35 : 1, points: false });
      }
      const judged = series(run, evaluation);
      if (judged !== null) {
        const lows = series(run, low), highs = series(run, high);
        const bars = lows && highs && lows.y.length === judged.y.length
          ? judged.x.map((x, n) => [x, lows.y[n], highs.y[n]]) : [];
        const note = (n) => (bars[n] ? ` [${rlpipeCharts.number(bars[n][1])}, ${rlpipeCharts.number(bars[n][2])}]` : "");
        found.push({ label: "evaluation", ...judged, colour: "series-2", width: 0, points: true, size: 8, bars, note });
      }
      return { lines: found, bands };
    };
    const isShare = metrics[training]?.unit === "fraction" || metrics[evaluation]?.unit === "fraction";
    const draw = () => {
      const { lines: found, bands } = lines();
      return { axis, series: found, bands, marks: marks() };
    };
    const chart = rlpipeCharts.chart(success, {
      ...draw(), height: 340, label: data.headline.label, range: isShare ? [0, 1.02] : undefined,
      readout: document.getElementById("success-readout"),
    });
    redraws.push(() => chart.update(draw()));
  }

  // small multiples
  for (const element of document.querySelectorAll("[data-small-chart]")) {
    const name = element.dataset.smallChart;
    const draw = () => { const { lines, bands } = linesOf(name); return { axis, series: lines, bands }; };
    const chart = rlpipeCharts.chart(element, {
      ...draw(), height: 150, small: true, readout: element.parentElement.querySelector(".readout"),
    });
    redraws.push(() => chart.update(draw()));
  }

  // chooser
  const chooser = document.getElementById("metric-chooser");
  if (chooser !== null) {
    const filter = document.getElementById("metric-filter"), about = document.getElementById("metric-about");
    const table = document.getElementById("metric-table");
    const everything = [...chooser.querySelectorAll("option")].map((option) => [option, option.parentElement]);
    const draw = () => {
      const { lines, bands } = linesOf(chooser.value);
      return { axis, series: lines, bands, marks: marks(), label: metrics[chooser.value]?.unit ?? "" };
    };
    const chart = rlpipeCharts.chart(document.getElementById("metric-chart"), {
      ...draw(), height: 300, readout: document.getElementById("metric-readout"),
    });
    const describe = () => {
      const known = metrics[chooser.value] ?? {};
      about.replaceChildren();
      const line = (text, style) => {
        if (!text) return;
        const found = document.createElement("p");
        found.textContent = text;
        if (style) found.className = style;
        about.append(found);
      };
      line(known.meaning);
      line([known.unit && `Unit: ${known.unit}.`, known.healthy && `Healthy: ${known.healthy}.`, known.formula && `Formula: ${known.formula}`].filter(Boolean).join(" "), "muted small");
      fill();
    };
    const fill = () => {
      if (!table.parentElement.closest("details").open) return;
      const found = runs.flatMap((run) => {
        const one = series(run, chooser.value);
        return one === null ? [] : one.x.map((x, n) => [run, one.at ? one.at[n] : n, x, one.y[n]]);
      });
      const shown = found.slice(-200);
      table.querySelector("caption").textContent = `${chooser.value}: ${shown.length < found.length ? `the last ${shown.length} of ${found.length}` : found.length} values`;
      table.tBodies[0].replaceChildren(...shown.map(([run, , x, y]) => {
        const row = document.createElement("tr");
        const cells = [...(runs.length > 1 ? [run.short] : []), rlpipeCharts.AXES[axis].read(x), rlpipeCharts.number(y)];
        for (const text of cells) { const cell = document.createElement("td"); cell.textContent = text; row.append(cell); }
        return row;
      }));
    };
    table.parentElement.closest("details").addEventListener("toggle", fill);
    chooser.addEventListener("change", () => { chart.update(draw()); describe(); });
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean), kept = chooser.value;
      for (const [option, parent] of everything) {
        const fits = words.every((word) => option.value.toLowerCase().includes(word));
        if (fits && option.parentElement !== parent) parent.append(option);
        if (!fits) option.remove();
      }
      for (const group of chooser.querySelectorAll("optgroup")) group.hidden = !group.children.length;
      const left = [...chooser.querySelectorAll("option")].map((option) => option.value);
      if (left.length && !left.includes(kept)) chooser.value = left[0];
      else if (left.includes(kept)) chooser.value = kept;
      if (chooser.value !== kept && left.length) { chart.update(draw()); describe(); }
    });
    redraws.push(() => { chart.update(draw()); fill(); });
    describe();
  }

  for (const button of document.querySelectorAll("[data-axis]")) {
    button.addEventListener("click", () => {
      axis = button.dataset.axis;
      for (const other of document.querySelectorAll("[data-axis]")) other.setAttribute("aria-pressed", String(other.dataset.axis === axis));
      for (const redraw of redraws) redraw();
    });
  }
})();
