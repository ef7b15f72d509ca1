// Plays recorded episodes: one or two views with the same time, curves below them, and the controls of both.
import { Chart, choices } from "./charts.js";
import { Episode } from "./data.js";
import { Stage } from "./stage.js";

const root = document.getElementById("replay");
const data = rlpipePage.data("replays");
const find = (selector, within = root) => within.querySelector(selector);
const all = (selector, within = root) => [...within.querySelectorAll(selector)];

const episodes = data.episodes.map((record) => new Episode(record, data));
const state = { time: 0, playing: false, speed: data.speed, longest: 1, last: 0, frame: 0 };

class Panel {
  constructor(element, number) {
    this.element = element;
    this.select = find("select.replay-select", element);
    this.canvas = find("canvas", element);
    this.chosen = 0; // third chart
    this.dirty = true;
    this.drawn = false;
    this.stage = null;
    const seek = (step) => { pause(); go(step); };
    const [reward, total, values] = all(".replay-chart", element);
    this.which = document.createElement("select");
    this.which.setAttribute("aria-label", "Numbers to show");
    this.charts = [
      new Chart(reward, "Reward of each step", seek),
      new Chart(total, "Return so far", seek),
      new Chart(values, this.which, seek),
    ];
    this.select.addEventListener("change", () => { this.show(+this.select.value); changed(); });
    this.which.addEventListener("change", () => {
      this.chosen = +this.which.value;
      this.charts[2].show(this.episode, this.choices[this.chosen], state.longest);
      this.at(state.time);
    });
    this.canvas.addEventListener("keydown", (event) => this.turn(event));
    this.show(data.first[number]);
  }

  show(number) {
    this.number = number;
    this.episode = episodes[number];
    this.select.value = String(number);
    const { facts, outcome, kind, geometry, poses } = this.episode;
    const badge = find(".badge", this.element);
    badge.textContent = outcome;
    badge.className = `badge ${kind}`;
    find(".replay-facts", this.element).textContent = facts;
    this.canvas.setAttribute("aria-label", `${this.episode.label}: ${outcome}, in 3D. ${facts}.`);
    this.open(geometry !== null && poses !== null);
    this.choices = choices(this.episode);
    this.chosen = Math.min(this.chosen, this.choices.length - 1);
    this.which.replaceChildren(...this.choices.map(({ label }, place) => new Option(label, String(place))));
    this.which.value = String(this.chosen);
  }

  /** Shows the bodies, or says why there are none. */
  open(hasBodies) {
    const words = find(".replay-none", this.element);
    let why = hasBodies ? "" : this.episode.why;
    if (hasBodies) {
      try {
        const first = this.stage === null;
        this.stage ??= new Stage(this.canvas, () => this.turned());
        this.stage.show(this.episode, data.meshes);
        this.drawn = true;
        const other = panels.find((panel) => panel !== this && panel.isBeside(this));
        if (other && first) this.stage.frameWith(other.stage);
        else this.turned(other);
      } catch (error) {
        this.stage = null;
        why = `This browser offers no WebGL, which 3D needs, so only numbers are shown (${error.message}).`;
      }
    }
    words.textContent = why;
    words.hidden = why === "";
    this.canvas.hidden = why !== "";
    this.drawn = why === "";
    this.element.classList.toggle("without-3d", why !== "");
    if (this.drawn) this.stage.resize();
  }

  /** True if another view shows the same bodies, and neither camera follows them. */
  isBeside(other) {
    return this.drawn && this.episode.geometry === other.episode.geometry && !this.stage.follows && !other.stage.follows;
  }

  /** Turns the other view as this one was turned, or this one as a given other. */
  turned(given) {
    this.dirty = true;
    if (given !== undefined) this.stage.lookAs(given.stage);
    else if (!Panel.turning && this.drawn) {
      Panel.turning = true; // the other one's answer ends here
      for (const other of panels) if (other !== this && other.isBeside(this)) other.stage.lookAs(this.stage);
      Panel.turning = false;
    }
    request();
  }

  charted() {
    const kinds = [{ kind: "reward" }, { kind: "return" }, this.choices[this.chosen]];
    this.charts.forEach((chart, place) => chart.show(this.episode, kinds[place], state.longest));
  }

  at(time) {
    this.dirty = true;
    if (this.drawn) this.stage.place(time);
    for (const chart of this.charts) chart.at(time);
    const over = time >= this.episode.length;
    this.element.classList.toggle("over", over);
    find(".replay-step", this.element).textContent =
      over ? `ended after step ${this.episode.length}` : `step ${Math.floor(time)} of ${this.episode.length}`;
  }

  turn(event) {
    const moves = { a: [-0.12, 0], d: [0.12, 0], w: [0, -0.08], s: [0, 0.08], "+": [0, 0, 0.9], "=": [0, 0, 0.9], "-": [0, 0, 1.1] };
    const move = moves[event.key.toLowerCase()];
    if (!move || !this.drawn || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.stage.orbit(...move);
  }

  render() {
    if (this.dirty && this.drawn) this.stage.render();
    this.dirty = false;
  }
}

const panels = [];
for (const [number, element] of all(".replay-panel").entries()) panels.push(new Panel(element, number));
const play = find(".replay-play"), slider = find(".replay-slider"), now = find(".replay-now"), said = find(".replay-said");

/** Takes over new episodes: the common length, the curves, and where time is. */
function changed() {
  state.longest = Math.max(1, ...panels.map((panel) => panel.episode.length));
  slider.max = String(state.longest);
  for (const panel of panels) panel.charted();
  for (const chip of all(".replay-chip")) {
    chip.setAttribute("aria-pressed", String(panels.some((panel) => panel.number === +chip.dataset.episode)));
  }
  go(Math.min(state.time, state.longest));
}

function go(time) {
  state.time = Math.min(Math.max(time, 0), state.longest);
  slider.value = String(state.time);
  now.textContent = `${Math.floor(state.time)} / ${state.longest}`;
  for (const panel of panels) panel.at(state.time);
  if (!state.playing) speak();
  request();
}

/** Describes the present step for who cannot see it; not while it plays. */
function speak() {
  const step = Math.floor(state.time);
  slider.setAttribute("aria-valuetext", `step ${step} of ${state.longest}`);
  said.textContent = panels.map(({ episode }) => {
    const here = Math.min(step, episode.length);
    const reward = here > 0 ? `, reward ${+episode.rewards[here - 1].toPrecision(4)}` : "";
    return `${episode.label}, ${episode.outcome}: step ${here} of ${episode.length}${reward}, return so far ${+episode.returns[here].toPrecision(4)}.`;
  }).join(" ");
}

function request() {
  if (!state.frame) state.frame = requestAnimationFrame(tick);
}

function tick(moment) {
  state.frame = 0;
  if (state.playing) {
    // A slow machine skips pictures, never time; after a pause of the page it goes on where it was.
    const passed = Math.min((moment - state.last) / 1000, 0.5);
    state.last = moment;
    const next = state.time + passed * state.speed;
    if (next >= state.longest) pause();
    go(next);
    if (state.playing) request();
  }
  for (const panel of panels) panel.render();
}

function start() {
  if (state.time >= state.longest) go(0);
  state.playing = true;
  state.last = performance.now();
  label();
  request();
}

function pause() {
  state.playing = false;
  label();
  speak();
}

function label() {
  play.setAttribute("aria-label", state.playing ? "Pause" : "Play");
  play.classList.toggle("playing", state.playing);
}

play.addEventListener("click", () => (state.playing ? pause() : start()));
find(".replay-restart").addEventListener("click", () => go(0));
find(".replay-back").addEventListener("click", () => { pause(); go(Math.ceil(state.time) - 1); });
find(".replay-forward").addEventListener("click", () => { pause(); go(Math.floor(state.time) + 1); });
slider.addEventListener("input", () => { pause(); go(+slider.value); });
find(".replay-speed").addEventListener("change", (event) => { state.speed = +event.target.value; });

for (const chip of all(".replay-chip")) {
  chip.addEventListener("click", () => {
    // Beside each other stand a success on the left and a failure on the right, where there are both.
    panels[Math.min(+chip.dataset.side, panels.length - 1)].show(+chip.dataset.episode);
    changed();
  });
}

const alone = document.querySelectorAll("main section").length <= 1;

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target;
  // On a page with more to read, space and the arrows scroll unless something of the replay has the focus.
  if (!root.contains(target) && !(target === document.body && alone)) return;
  if (target.matches?.("select, input:not(.replay-slider), summary, textarea")) return;
  if (event.key === " " && target.matches?.("button:not(.replay-play)")) return;
  const far = event.shiftKey ? 10 : 1;
  const actions = {
    " ": () => (state.playing ? pause() : start()),
    ArrowLeft: () => { pause(); go(Math.ceil(state.time) - far); },
    ArrowRight: () => { pause(); go(Math.floor(state.time) + far); },
    Home: () => go(0),
    End: () => { pause(); go(state.longest); },
  };
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

document.addEventListener("themechange", () => {
  for (const panel of panels) {
    if (panel.drawn) panel.stage.theme();
    panel.charted();
    panel.at(state.time);
  }
  request();
});

new ResizeObserver(() => {
  for (const panel of panels) {
    if (panel.drawn) panel.stage.resize();
    for (const chart of panel.charts) chart.resize();
    panel.at(state.time);
  }
  request();
}).observe(root);

// For tests, and for a look in the console: poses as they are drawn, from the matrices of the objects.
window.rlpipeReplay = {
  play: start,
  pause,
  go,
  time: () => state.time,
  show: (panel, episode) => { panels[panel].show(episode); changed(); },
  bodies: (panel = 0) => panels[panel].stage.groups.map((group) => group.name),
  pose: (name, step, panel = 0) => { pause(); go(step); return panels[panel].stage.worldPose(name); },
  look: (eye, target, panel = 0) => {
    const { camera, controls } = panels[panel].stage;
    camera.position.set(...eye);
    controls.target.set(...target);
    controls.update();
  },
};

changed();
label();
