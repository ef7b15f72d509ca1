// One episode in 3D. Units are metres and z points up, as in the simulator, so world matrices are the simulator's.
import {
  AmbientLight, Box3, BoxGeometry, BufferAttribute, BufferGeometry, CanvasTexture, CapsuleGeometry, Color, CylinderGeometry,
  DirectionalLight, Fog, Group, HemisphereLight, Matrix4, Mesh, MeshStandardMaterial, NeutralToneMapping, Object3D,
  PCFShadowMap, PerspectiveCamera, PlaneGeometry, Quaternion, RepeatWrapping, Scene, SphereGeometry, SRGBColorSpace,
  Vector3, WebGLRenderer,
} from "three";
import { OrbitControls } from "three/examples/jsm/controls/OrbitControls.js";
import { toCreasedNormals } from "three/examples/jsm/utils/BufferGeometryUtils.js";
import { array, points } from "./data.js";

Object3D.DEFAULT_UP.set(0, 0, 1);

const GROUND = 8; // half length in metres from which a plane is ground without end
const CREASE = 0.6; // rad: sharper edges stay sharp
const LARGE = 1.2; // diagonal in metres from which a body that stays where it is does not count for the view
const DOWNWARDS = 0.27; // least slope of the view: some tasks put their camera level with the table
const TRAVEL = 1.2; // metres that bodies must move together before the camera follows them

const geometries = new Map(); // meshes by number; both views share them

function meshGeometry(meshes, number) {
  if (!geometries.has(number)) {
    const indexed = new BufferGeometry();
    indexed.setAttribute("position", new BufferAttribute(points(meshes[number]), 3));
    indexed.setIndex(new BufferAttribute(array(meshes[number].triangles), 1));
    geometries.set(number, toCreasedNormals(indexed, CREASE));
  }
  return geometries.get(number);
}

function geometryOf(shape, meshes) {
  const [a, b, c] = shape.size;
  switch (shape.kind) {
    case "box": return new BoxGeometry(2 * a, 2 * b, 2 * c);
    case "sphere": return new SphereGeometry(a, 40, 24);
    case "ellipsoid": return new SphereGeometry(1, 40, 24).scale(a, b, c);
    case "capsule": return new CapsuleGeometry(a, 2 * b, 10, 28).rotateX(Math.PI / 2);
    case "cylinder": return new CylinderGeometry(a, a, 2 * b, 56).rotateX(Math.PI / 2);
    case "plane": return new PlaneGeometry(2 * (a || 1), 2 * (b || 1));
    default: return meshGeometry(meshes, shape.mesh);
  }
}

/** Picture of one square metre of ground: its colour with thin lines around it. */
function groundTexture() {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 256;
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, 256, 256);
  pen.strokeStyle = "rgb(0 0 0 / 14%)";
  pen.lineWidth = 3;
  pen.strokeRect(0, 0, 256, 256);
  const texture = new CanvasTexture(canvas);
  texture.wrapS = texture.wrapT = RepeatWrapping;
  texture.colorSpace = SRGBColorSpace;
  texture.anisotropy = 8;
  return texture;
}

export class Stage {
  /** Makes the view. Throws where there is no WebGL. */
  constructor(canvas, changed) {
    this.renderer = new WebGLRenderer({ canvas, antialias: true });
    this.renderer.shadowMap.enabled = true;
    this.renderer.shadowMap.type = PCFShadowMap;
    this.renderer.shadowMap.autoUpdate = false;
    this.renderer.toneMapping = NeutralToneMapping;
    this.camera = new PerspectiveCamera(38, 1, 0.03, 400);
    this.controls = new OrbitControls(this.camera, canvas);
    this.controls.enablePan = true;
    this.controls.maxPolarAngle = Math.PI * 0.495;
    this.controls.addEventListener("change", changed);
    this.scene = new Scene();
    this.sky = new HemisphereLight("#ffffff", "#8d8a86", 1.5);
    this.fill = new DirectionalLight("#dfe8ff", 0.7);
    this.sun = new DirectionalLight("#fff6ea", 2.4);
    this.sun.castShadow = true;
    this.sun.shadow.mapSize.set(2048, 2048);
    this.sun.shadow.radius = 3;
    this.scene.add(this.sky, this.fill, this.sun, this.sun.target, new AmbientLight("#ffffff", 0.15));
    this.texture = groundTexture();
    this.groups = [];
    this.grounds = [];
    this.episode = null;
    this.pose = new Float64Array(7);
    this.next = new Float64Array(7);
    this.turned = new Quaternion();
    this.shift = new Vector3();
  }

  /** Shows another episode; the camera stays where the user has put it, unless the bodies are others. */
  show(episode, meshes) {
    const same = this.episode !== null && this.episode.geometry === episode.geometry;
    this.episode = episode;
    this.origin = null;
    this.shift.set(0, 0, 0);
    if (!same) {
      for (const group of this.groups) this.scene.remove(group);
      this.grounds = [];
      this.groups = episode.geometry.bodies.map((body) => this.body(body, meshes));
      this.scene.add(...this.groups);
    }
    this.movers = episode.geometry.bodies.map((_, b) => b).filter((b) => episode.poses.moves(b));
    this.follows = this.travel() > TRAVEL;
    this.place(0);
    if (!same || this.follows) this.lookAround();
  }

  body(body, meshes) {
    const group = new Group();
    group.name = body.name;
    body.shapes.forEach((shape, number) => {
      const mesh = new Mesh(geometryOf(shape, meshes), this.material(body, shape));
      mesh.position.set(...shape.position);
      const [w, x, y, z] = shape.rotation;
      mesh.quaternion.set(x, y, z, w);
      if (shape.kind === "mesh") mesh.scale.set(...shape.size);
      mesh.castShadow = !body.ghost && shape.kind !== "plane";
      mesh.receiveShadow = !body.ghost;
      if (body.ghost) mesh.renderOrder = 1 + number; // marks lie one on the other
      if (shape.kind === "plane" && isGround(shape)) this.grounds.push(this.ground(mesh));
      group.add(mesh);
    });
    return group;
  }

  material(body, shape) {
    const [red, green, blue, opacity] = shape.colour;
    const material = new MeshStandardMaterial({ roughness: 0.72, metalness: 0 });
    material.color.setRGB(red, green, blue);
    if (body.ghost || opacity < 1) {
      material.transparent = true;
      material.opacity = body.ghost ? Math.min(opacity, 0.55) : opacity;
      material.depthWrite = false;
      if (body.ghost) material.emissive.setRGB(red, green, blue).multiplyScalar(0.25);
    }
    return material;
  }

  ground(mesh) {
    mesh.geometry = new PlaneGeometry(400, 400);
    mesh.material.map = this.texture;
    mesh.material.roughness = 1;
    this.texture.repeat.set(400, 400);
    mesh.castShadow = false;
    return mesh;
  }

  /** Distance between the places of the moving bodies at the beginning and farthest from it, in metres. */
  travel() {
    const start = this.centre(0, new Vector3()), here = new Vector3();
    let far = 0;
    for (let step = 0; step <= this.episode.length; step += Math.max(1, this.episode.length >> 5)) {
      far = Math.max(far, this.centre(step, here).distanceTo(start));
    }
    return far;
  }

  centre(step, out) {
    out.set(0, 0, 0);
    for (const b of this.movers) {
      const pose = this.episode.poses.read(step, b, this.pose);
      out.x += pose[0]; out.y += pose[1]; out.z += pose[2];
    }
    return out.multiplyScalar(1 / Math.max(1, this.movers.length));
  }

  /** Chooses where to look from and where the light comes from. */
  lookAround(box = this.extent()) {
    const { eye, target } = this.episode.geometry;
    this.framed = box;
    box = { centre: box.getCenter(new Vector3()), radius: 0.5 * box.getSize(new Vector3()).length() };
    const radius = Math.min(Math.max(box.radius, 0.15), 6);
    const from = eye.length === 3 ? new Vector3(...eye).sub(new Vector3(...target)) : new Vector3(0.62, -0.78, 0.4);
    from.normalize();
    from.z = Math.max(from.z, DOWNWARDS);
    this.controls.target.copy(box.centre);
    this.camera.position.copy(from).normalize().multiplyScalar(2.25 * radius).add(box.centre);
    this.light = new Vector3(0.45, 0.62, 1.15).normalize().multiplyScalar(4 * radius);
    const around = 2 * radius;
    Object.assign(this.sun.shadow.camera, {
      left: -around, right: around, top: around, bottom: -around, near: 0.05 * radius, far: 12 * radius,
    });
    this.sun.shadow.camera.updateProjectionMatrix();
    this.sun.shadow.normalBias = around * 0.012;
    this.sun.shadow.bias = -0.0004;
    this.middle = box.centre.clone();
    this.reach = radius;
    this.aimLight();
    this.controls.minDistance = 0.3 * radius;
    this.controls.maxDistance = 14 * radius;
    this.controls.update();
    this.theme();
  }

  /** Frames what both views show, from the same place. */
  frameWith(other) {
    const both = this.framed.clone().union(other.framed);
    this.lookAround(both);
    other.lookAround(both.clone());
  }

  /** Looks as another view does, so that two can be compared. */
  lookAs(other) {
    this.camera.position.copy(other.camera.position);
    this.controls.target.copy(other.controls.target);
    this.controls.update();
  }

  aimLight() {
    this.sun.target.position.copy(this.middle);
    this.sun.position.copy(this.middle).add(this.light);
    this.fill.position.set(-1, -1.4, 0.8);
  }

  /** Box around all bodies but large ones, such as a table, over the whole episode; if the camera follows, of now. */
  extent() {
    const box = new Box3(), own = new Box3(), place = new Vector3();
    this.groups.forEach((group, b) => {
      if (this.episode.geometry.bodies[b].shapes.some((shape) => shape.kind === "plane")) return;
      own.setFromObject(group);
      if (this.movers.includes(b) || own.getSize(place).length() < LARGE) box.union(own);
    });
    const every = this.follows ? this.episode.length + 1 : Math.max(1, this.episode.length >> 4);
    for (let step = 0; step <= this.episode.length; step += every) {
      for (const b of this.movers) {
        const pose = this.episode.poses.read(step, b, this.pose);
        box.expandByPoint(place.set(pose[0], pose[1], pose[2]));
      }
    }
    if (box.isEmpty()) box.setFromObject(this.scene);
    return box;
  }

  /** Moves every body to a time in steps; between two steps it is on the way. */
  place(time) {
    const { poses, length } = this.episode;
    const clamped = Math.min(Math.max(time, 0), length);
    const from = Math.floor(clamped), share = clamped - from;
    this.groups.forEach((group, b) => {
      const pose = poses.read(from, b, this.pose);
      group.position.set(pose[0], pose[1], pose[2]);
      group.quaternion.set(pose[4], pose[5], pose[6], pose[3]);
      if (share > 0 && from < length) {
        const next = poses.read(from + 1, b, this.next);
        group.position.lerp(new Vector3(next[0], next[1], next[2]), share);
        group.quaternion.slerp(this.turned.set(next[4], next[5], next[6], next[3]), share);
      }
    });
    if (this.follows) this.follow(clamped);
    this.renderer.shadowMap.needsUpdate = true;
  }

  follow(time) {
    const whole = Math.floor(time), share = time - whole;
    const here = this.centre(whole, new Vector3());
    if (share > 0) here.lerp(this.centre(whole + 1, new Vector3()), share);
    here.z = 0;
    if (this.origin === null) this.origin = here.clone();
    const moved = here.sub(this.origin).sub(this.shift);
    this.shift.add(moved);
    this.camera.position.add(moved);
    this.controls.target.add(moved);
    if (this.middle) {
      this.middle.add(moved);
      this.aimLight();
    }
  }

  /** World pose of a body [x, y, z, w, i, j, k], read from what is drawn. */
  worldPose(name) {
    const group = this.groups.find((one) => one.name === name);
    group.updateWorldMatrix(true, false);
    const place = new Vector3(), turned = new Quaternion(), scale = new Vector3();
    new Matrix4().copy(group.matrixWorld).decompose(place, turned, scale);
    return [place.x, place.y, place.z, turned.w, turned.x, turned.y, turned.z];
  }

  /** Turns, tilts (radians) and approaches (factor) as the mouse does. */
  orbit(turn, tilt, factor = 1) {
    const offset = this.camera.position.clone().sub(this.controls.target);
    const length = offset.length();
    const polar = Math.min(Math.max(Math.acos(offset.z / length) + tilt, 0.05), this.controls.maxPolarAngle);
    const azimuth = Math.atan2(offset.y, offset.x) + turn;
    const far = Math.min(Math.max(length * factor, this.controls.minDistance), this.controls.maxDistance);
    offset.set(Math.sin(polar) * Math.cos(azimuth), Math.sin(polar) * Math.sin(azimuth), Math.cos(polar));
    this.camera.position.copy(this.controls.target).addScaledVector(offset, far);
    this.controls.update();
  }

  /** Takes the colours of the page's theme. */
  theme() {
    const dark = rlpipePage.isDark();
    const back = new Color(dark ? "#1b2026" : "#e9edf1");
    this.scene.background = back;
    const reach = this.reach ?? 1;
    this.scene.fog = new Fog(back, 5 * reach, 22 * reach);
    for (const ground of this.grounds) ground.material.color.set(dark ? "#2c333b" : "#d3d8dd");
    this.sky.intensity = dark ? 1.15 : 1.5;
    this.sky.groundColor.set(dark ? "#5b5a5c" : "#8d8a86");
    this.sun.intensity = dark ? 2.1 : 2.4;
    this.renderer.shadowMap.needsUpdate = true;
  }

  resize() {
    const canvas = this.renderer.domElement;
    const { clientWidth: width, clientHeight: height } = canvas.parentElement;
    if (!width || !height) return;
    this.renderer.setPixelRatio(Math.min(devicePixelRatio, 2));
    this.renderer.setSize(width, height, false);
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
  }

  render() {
    this.renderer.render(this.scene, this.camera);
  }
}

function isGround(shape) {
  return shape.size.every((half) => half === 0 || half >= GROUND);
}
