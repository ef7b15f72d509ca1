// Curves of one episode over its steps, with a cursor that follows playback. uPlot draws them.

const COLOURS = 8;
const HEIGHT = 104;

const colour = (number) => rlpipePage.colour(`series-${(number % COLOURS) + 1}`);

function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e5) ? value.toExponential(1) : value.toFixed(size < 10 ? 3 : size < 1000 ? 1 : 0);
}

/** Column of values over steps, with lines' names: what a chart shows. */
function rows(episode, choice) {
  const steps = Array.from({ length: episode.length + 1 }, (_, step) => step);
  if (choice.kind === "reward") return { steps, lines: [["reward", [null, ...episode.rewards]]] };
  if (choice.kind === "return") return { steps, lines: [["return so far", [...episode.returns]]] };
  const { values, width, from } = episode.groups[choice.group];
  const lines = [];
  for (let column = choice.first; column < Math.min(width, choice.first + COLOURS); column++) {
    lines.push([`${column}`, steps.map((step) => (step < from ? null : values[(step - from) * width + column]))]);
  }
  return { steps, lines };
}

/** Choices of the third chart: actions and each leaf of the observation, eight numbers at a time. */
export function choices(episode) {
  return episode.groups.flatMap((group, number) => {
    const found = [];
    for (let first = 0; first < group.width; first += COLOURS) {
      const last = Math.min(group.width, first + COLOURS) - 1;
      const range = group.width === 1 ? "" : first === last ? ` ${first}` : ` ${first} to ${last}`;
      found.push({ kind: "values", group: number, first, label: `${group.name}${range}` });
    }
    return found;
  });
}

export class Chart {
  /** Makes a chart in an element; ``seek`` is called with the step that is pointed at. */
  constructor(element, title, seek) {
    this.element = element;
    this.seek = seek;
    this.heading = document.createElement("div");
    this.heading.className = "replay-chart-title";
    this.legend = document.createElement("ul");
    this.legend.className = "replay-values";
    this.box = document.createElement("div");
    this.only = document.createElement("output"); // value of the only line
    this.heading.append(title, this.only);
    element.append(this.heading, this.box, this.legend);
  }

  show(episode, choice, longest) {
    this.episode = episode;
    this.choice = choice;
    this.longest = longest;
    this.draw();
  }

  draw() {
    this.plot?.destroy();
    const { steps, lines } = rows(this.episode, this.choice);
    this.lines = lines;
    const axis = { stroke: rlpipePage.colour("muted"), font: "11px system-ui, sans-serif", ticks: { show: false } };
    const grid = { stroke: rlpipePage.colour("grid"), width: 1 };
    const stepped = this.choice.kind === "reward";
    this.plot = new uPlot({
      width: Math.max(120, this.box.clientWidth),
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      padding: [8, 10, 0, 0],
      scales: { x: { time: false, range: [0, this.longest] }, y: { range: limits } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, gap: 2, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], space: 44 },
        { ...axis, grid, size: 46, gap: 4, space: 26, values: (_, ticks) => ticks.map((tick) => String(+tick.toPrecision(4))) },
      ],
      series: [{}, ...lines.map((_, number) => ({
        stroke: colour(number),
        width: 1.6,
        points: { show: steps.length < 3 },
        paths: stepped ? uPlot.paths.stepped({ align: -1 }) : undefined,
      }))],
    }, [steps, ...lines.map(([, values]) => values)], this.box);
    this.head = document.createElement("div");
    this.head.className = "replay-head";
    this.plot.over.append(this.head);
    this.plot.over.classList.add("replay-over");
    const seek = (event) => {
      const box = this.plot.over.getBoundingClientRect();
      this.seek(Math.round(this.plot.posToVal(event.clientX - box.left, "x")));
    };
    this.plot.over.addEventListener("pointerdown", (event) => {
      this.plot.over.setPointerCapture(event.pointerId);
      seek(event);
    });
    this.plot.over.addEventListener("pointermove", (event) => { if (event.buttons) seek(event); });
    this.shown = lines.map(() => document.createElement("span"));
    this.only.replaceChildren(...(lines.length === 1 ? this.shown : []));
    this.legend.hidden = lines.length === 1;
    if (lines.length === 1) return;
    this.legend.replaceChildren(...lines.map(([name], number) => {
      const item = document.createElement("li");
      const key = document.createElement("span");
      key.className = "key";
      key.style.background = colour(number);
      item.append(key, `${name} `, this.shown[number]);
      return item;
    }));
  }

  /** Moves the cursor to a time, and shows the values of the step. */
  at(time) {
    if (!this.plot) return;
    const here = Math.min(time, this.episode.length);
    this.head.style.transform = `translateX(${this.plot.valToPos(here, "x")}px)`;
    const step = Math.floor(here);
    this.shown.forEach((value, number) => { value.textContent = short(this.lines[number][1][step] ?? NaN); });
  }

  resize() {
    if (this.plot) this.plot.setSize({ width: Math.max(120, this.box.clientWidth), height: HEIGHT });
  }
}

function limits(_, low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return [low - 0.5, high + 0.5];
  const space = 0.08 * (high - low);
  return [low - space, high + space];
}
