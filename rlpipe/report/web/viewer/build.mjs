// Builds the bundle that pages carry. Run `npm ci && npm run build` here; the result is committed.
import { build } from "esbuild";
import { copyFile, mkdir, stat } from "node:fs/promises";

const folder = "../vendor/viewer";
await mkdir(folder, { recursive: true });
await build({
  entryPoints: ["src/main.js"],
  outfile: `${folder}/viewer.min.js`,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "inline",
});
await copyFile("node_modules/three/LICENSE", `${folder}/LICENSE`);
console.log(`${folder}/viewer.min.js: ${((await stat(`${folder}/viewer.min.js`)).size / 1e3).toFixed(0)} kB`);
