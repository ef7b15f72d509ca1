// Reads the numbers of a page: arrays travel as base64 of little-endian numbers.

function bytes(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer;
}

const KINDS = { f4: Float32Array, f8: Float64Array, u2: Uint16Array, u4: Uint32Array };

/** Returns a typed array. */
export function array({ type, data }) {
  return new KINDS[type](bytes(data));
}

/** Vertices of a mesh, as floats: it holds 16-bit places within a box. */
export function points(mesh) {
  const steps = array(mesh.points);
  const found = new Float32Array(steps.length);
  for (let i = 0; i < steps.length; i++) found[i] = mesh.low[i % 3] + steps[i] * mesh.step[i % 3];
  return found;
}

/** Poses of all steps: a function that writes [x, y, z, w, i, j, k] of body b after step s. */
export class Poses {
  constructor(packed, bodies) {
    this.bodies = bodies;
    this.width = bodies * 7;
    this.first = array(packed.first); // [B * 7]: what never moves
    this.columns = packed.columns; // those that move
    this.low = packed.low;
    this.step = packed.step;
    this.values = array(packed.values); // [T + 1, columns]
    this.place = new Int32Array(this.width).fill(-1);
    this.columns.forEach((column, place) => { this.place[column] = place; });
  }

  value(step, column) {
    const place = this.place[column];
    if (place < 0) return this.first[column];
    const held = this.values[step * this.columns.length + place];
    return this.low === null ? held : this.low[place] + held * this.step[place];
  }

  /** True if a body moves by more than what a solver's noise does: 2 mm, or as much of a quaternion. */
  moves(body) {
    return [0, 1, 2, 3, 4, 5, 6].some((number) => {
      const place = this.place[body * 7 + number];
      return place >= 0 && (this.low === null || this.step[place] * 65535 > 0.002);
    });
  }

  read(step, body, out) {
    for (let i = 0; i < 7; i++) out[i] = this.value(step, body * 7 + i);
    return out;
  }
}

export class Episode {
  constructor(record, data) {
    Object.assign(this, record);
    this.rewards = array(record.rewards);
    this.returns = new Float64Array(this.rewards.length + 1);
    this.rewards.forEach((reward, step) => { this.returns[step + 1] = this.returns[step] + reward; });
    this.length = this.rewards.length;
    this.geometry = record.scene ? data.scenes[record.scene] : null;
    this.poses = record.poses && this.geometry ? new Poses(record.poses, this.geometry.bodies.length) : null;
    // Rows of numbers to draw: the state before the first step has no action.
    this.groups = record.groups.map(({ name, width, values, from }) => ({ name, width, from, values: array(values) }));
  }
}
