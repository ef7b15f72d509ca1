from __future__ import annotations

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

OPTIONS: tuple[str, ...] = ()
TOLERANCE = 1e-6  # TensorBoard keeps single precision


def numbers(run):
    reader = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    found: dict[int, dict[str, float]] = {}
    for name in reader.Tags()["scalars"]:
        for point in reader.Scalars(name):
            held = found.setdefault(point.step, {})
            assert name not in held, f"{name} stands twice in iteration {point.step}"
            held[name] = point.value
    return found
