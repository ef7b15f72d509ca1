"use strict";
// Line charts over uPlot: sizes, themes, marks, a readout that the pointer and the arrow keys move.
const rlpipeCharts = (() => {
  const charts = new Set();

  /** Writes a number with the six significant digits that the page holds. */
  function number(value) {
    if (value === null || value === undefined) return "–";
    if (Number.isInteger(value) && Math.abs(value) < 1e12) return value.toLocaleString("en");
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(5).replace(/\.?0+e/, "e");
    return value.toLocaleString("en", { maximumSignificantDigits: 6 });
  }

  /** Writes the ticks of an axis as short as they can be. */
  function tick(value) {
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size >= 1e9) return `${+(value / 1e9).toPrecision(4)}G`;
    if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`;
    if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`;
    if (size < 1e-3) return value.toExponential().replace(/(\.\d\d)\d+e/, "$1e");
    return `${+value.toPrecision(6)}`;
  }

  function clock(seconds) {
    const whole = Math.round(seconds), pad = (part) => String(part).padStart(2, "0");
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)} h` : `${minutes}:${pad(whole % 60)} min`;
  }

  const AXES = {
    steps: { label: "environment steps", ticks: tick, read: (x) => `step ${number(x)}` },
    seconds: { label: "training time", ticks: (x) => clock(x).replace(/ (h|min)$/, ""), read: clock },
    iteration: { label: "iteration", ticks: tick, read: (x) => `iteration ${number(x)}` },
    row: { label: "report", ticks: tick, read: (x) => `report ${number(x)}` },
  };

  function alpha(colour, share) {
    return colour.replace(/^rgba?\(([^)]*?)\)$/, (_, parts) => {
      const [r, g, b] = parts.split(/[ ,/]+/);
      return `rgba(${r}, ${g}, ${b}, ${share})`;
    });
  }

  /** Merges series with positions of their own onto one axis. */
  function joined(series) {
    const places = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
    const index = new Map(places.map((x, n) => [x, n]));
    const columns = series.map((one) => {
      const column = new Array(places.length).fill(null);
      one.x.forEach((x, n) => { column[index.get(x)] = one.y[n]; });
      return column;
    });
    return [places, ...columns];
  }

  function drawMarks(u, marks) {
    const { ctx } = u, ratio = devicePixelRatio;
    const { left, top, width, height } = u.bbox;
    ctx.save();
    for (const mark of marks) {
      const x = u.valToPos(mark.x, "x", true);
      if (!(x >= left - 1 && x <= left + width + 1)) continue;
      ctx.strokeStyle = ctx.fillStyle = rlpipePage.colour(mark.colour);
      if (mark.small) {
        ctx.beginPath();
        ctx.moveTo(x, top + height - 8 * ratio);
        ctx.lineTo(x - 4 * ratio, top + height);
        ctx.lineTo(x + 4 * ratio, top + height);
        ctx.fill();
      } else {
        ctx.lineWidth = 1.5 * ratio;
        ctx.setLineDash(mark.dash ? [4 * ratio, 4 * ratio] : []);
        ctx.beginPath();
        ctx.moveTo(x, top);
        ctx.lineTo(x, top + height);
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  function drawBars(u, bars, colour) {
    const { ctx } = u, ratio = devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1.5 * ratio;
    for (const [x, low, high] of bars) {
      const at = u.valToPos(x, "x", true);
      ctx.beginPath();
      ctx.moveTo(at, u.valToPos(low, "y", true));
      ctx.lineTo(at, u.valToPos(high, "y", true));
      ctx.stroke();
    }
    ctx.restore();
  }

  function drawCloud(u, { x, y, colour }) {
    const { ctx } = u, size = 3 * devicePixelRatio;
    ctx.save();
    ctx.fillStyle = alpha(rlpipePage.colour(colour), 0.55);
    for (let n = 0; n < x.length; n += 1) {
      ctx.beginPath();
      ctx.arc(u.valToPos(x[n], "x", true), u.valToPos(y[n], "y", true), size * 0.75, 0, 7);
      ctx.fill();
    }
    ctx.restore();
  }

  /**
   * Draws a chart into an element and keeps it right when its width or the theme changes.
   *
   * series: [{label, x, y, colour (a variable), width, alpha, points, bars: [[x, low, high]], quiet}], a quiet one is
   * in no readout. clouds: [{x, y, colour}], points that may share positions. bands: [[upper, lower, colour]] by index of the series. Returns {update, destroy}.
   */
  function chart(element, options) {
    const state = { ...options };
    const readout = state.readout ?? null;
    let u = null;

    function build() {
      if (u !== null) u.destroy();
      const width = element.clientWidth;
      if (width === 0 || !state.series.length) { u = null; return; }
      const ink = rlpipePage.colour("muted"), grid = rlpipePage.colour("grid"), small = state.small === true;
      const axis = AXES[state.axis], font = `${small ? 11 : 12}px system-ui, sans-serif`;
      const common = { stroke: ink, font, labelFont: font, ticks: { show: false }, grid: { stroke: grid, width: 1 } };
      const drawn = state.series.map((one) => {
        const colour = rlpipePage.colour(one.colour);
        const stroke = one.alpha ? alpha(colour, one.alpha) : colour;
        return {
          label: one.label, stroke, width: one.width ?? 1.5, spanGaps: true, scale: "y",
          paths: one.width === 0 ? () => null : undefined,
          points: { show: one.points ?? (one.x.length < 2), size: one.size ?? 6, fill: stroke, stroke, width: 0 },
        };
      });
      const bands = (state.bands ?? []).map(([upper, lower, colour]) => (
        { series: [upper + 1, lower + 1], fill: alpha(rlpipePage.colour(colour), 0.16) }));
      const range = state.range ?? ((_, low, high) => {
        if (low === null) return [0, 1];
        if (low === high) { const room = Math.abs(low) / 10 || 1; return [low - room, high + room]; }
        return uPlot.rangeNum(low, high, 0.08, false);
      });
      u = new uPlot({
        width, height: state.height ?? 300, legend: { show: false }, padding: [10, small ? 14 : 16, 0, 0],
        cursor: { drag: { x: !small, y: false }, y: false, points: { size: 6 } },
        scales: { x: { time: false }, y: { range } },
        axes: [
          { ...common, grid: { show: false }, values: (_, ticks) => ticks.map(axis.ticks), size: small ? 22 : 28,
            label: small ? undefined : axis.label, labelSize: 20, labelGap: 0, space: small ? 60 : 70 },
          { ...common, values: (_, ticks) => ticks.map(tick), size: (self, values) => (
              10 + 7 * Math.max(3, ...(values ?? []).map((text) => text.length))), space: small ? 24 : 40,
            label: small ? undefined : state.label, labelSize: 18 },
        ],
        series: [{}, ...drawn],
        bands,
        hooks: {
          draw: [(self) => {
            state.series.forEach((one) => { if (one.bars) drawBars(self, one.bars, rlpipePage.colour(one.colour)); });
            for (const cloud of state.clouds ?? []) drawCloud(self, cloud);
            drawMarks(self, state.marks ?? []);
          }],
          setCursor: [(self) => read(self)],
        },
      }, joined(state.series), element);
      element.querySelector("canvas").setAttribute("aria-hidden", "true");
    }

    function read(self) {
      if (readout === null) return;
      const at = self.cursor.idx;
      if (at === null || at === undefined) { readout.textContent = readout.dataset.rest ?? ""; return; }
      const x = self.data[0][at];
      const parts = state.series.flatMap((one, index) => {
        const value = self.data[index + 1][at];
        if (one.quiet || value === null || value === undefined) return [];
        const extra = one.note?.(one.x.indexOf(x)) ?? "";
        return [`${one.label} ${number(value)}${extra}`];
      });
      readout.textContent = [AXES[state.axis].read(x), ...parts].join(" · ");
    }

    function move(event) {
      if (u === null || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
      event.preventDefault();
      const last = u.data[0].length - 1, now = u.cursor.idx ?? -1;
      const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
      const at = Math.max(0, Math.min(last, next));
      u.setCursor({ left: u.valToPos(u.data[0][at], "x"), top: 10 });
    }

    const observer = new ResizeObserver(() => {
      if (u === null) build();
      else if (element.clientWidth > 0 && element.clientWidth !== u.width) {
        u.setSize({ width: element.clientWidth, height: state.height ?? 300 });
      }
    });
    observer.observe(element);
    element.addEventListener("keydown", move);
    const self = {
      update(changes) { Object.assign(state, changes); build(); },
      redraw: build,
      destroy() { observer.disconnect(); charts.delete(self); if (u !== null) u.destroy(); },
    };
    charts.add(self);
    build();
    return self;
  }

  document.addEventListener("themechange", () => { for (const one of charts) one.redraw(); });
  return { chart, number, tick, clock, alpha, AXES };
})();
