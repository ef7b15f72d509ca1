"""Axes of variations: those that every simulator has, and those that simulators share.

A simulator lists its axes in ``Simulator.axes``, and those of a task in ``TaskFacts.axes``.
"""

from __future__ import annotations

from rlpipe.config.variations import FRACTIONS, NUMBERS, PICTURES, Axis

ACTION_NOISE = Axis(
    "action_noise", 0.0, 0.0, 2.0, "half action ranges", "actions",
    "standard deviation of the normal noise on each number of a command", needs=NUMBERS, stress=(0.0, 0.4),
)  # fmt: skip
ACTION_LATENCY = Axis(
    "action_latency", 0.0, 0.0, 1000.0, "steps", "actions",
    "steps after which a command arrives; the first one stands in until then", in_steps=True, stress=(0.0, 4.0),
)  # fmt: skip
ACTION_HOLD = Axis(
    "action_hold", 1.0, 1.0, 1000.0, "steps", "actions",
    "steps for which a command is held: only every so many steps a new one is accepted", in_steps=True,
    stress=(1.0, 5.0),
)  # fmt: skip
ACTION_SCALE = Axis(
    "action_scale", 1.0, 0.0, 10.0, "", "actions", "factor of each number of a command", needs=NUMBERS,
    stress=(0.5, 2.0),
)  # fmt: skip
OBSERVATION_NOISE = Axis(
    "observation_noise", 0.0, 0.0, 1000.0, "units of the observation", "observations",
    "standard deviation of the normal noise on each number that is a fraction", needs=FRACTIONS, stress=(0.0, 0.1),
)  # fmt: skip
OBSERVATION_LATENCY = Axis(
    "observation_latency", 0.0, 0.0, 1000.0, "steps", "observations",
    "age of what is observed; the first observation stands in until then", in_steps=True, stress=(0.0, 4.0),
)  # fmt: skip
OBSERVATION_DROPOUT = Axis(
    "observation_dropout", 0.0, 0.0, 1.0, "", "observations",
    "probability that a step observes what the step before it did", stress=(0.0, 0.8),
)  # fmt: skip
EVERYWHERE = (
    ACTION_NOISE, ACTION_LATENCY, ACTION_HOLD, ACTION_SCALE, OBSERVATION_NOISE, OBSERVATION_LATENCY,
    OBSERVATION_DROPOUT,
)  # fmt: skip
"""Axes of every simulator, which act on what goes into it and what comes out (``varied``)."""

OF_OBSERVATIONS = tuple(axis for axis in EVERYWHERE if axis.acts_on == "observations")

BRIGHTNESS = Axis(
    "brightness", 0.0, -1.0, 1.0, "", "pictures", "share of white that each colour gains", needs=PICTURES,
    stress=(-0.4, 0.4),
)  # fmt: skip
CONTRAST = Axis(
    "contrast", 1.0, 0.0, 10.0, "", "pictures", "factor of the distance of each colour from medium grey",
    needs=PICTURES, stress=(0.5, 2.0),
)  # fmt: skip
CAMERA_SHIFT = Axis(
    "camera_shift", 0.0, 0.0, 0.5, "", "pictures",
    "distance in widths by which a picture is shifted, in a direction that follows from the seed",
    needs=PICTURES, stress=(0.0, 0.1),
)  # fmt: skip
CAMERA_TILT = Axis(
    "camera_tilt", 0.0, 0.0, 180.0, "degrees", "pictures",
    "angle by which a picture is turned about its centre, to the side that follows from the seed", needs=PICTURES,
    stress=(0.0, 10.0),
)  # fmt: skip
OF_CAMERAS = (BRIGHTNESS, CONTRAST, CAMERA_SHIFT, CAMERA_TILT)
"""Axes of simulators whose observations hold pictures."""

MASS = Axis(
    "mass", 1.0, 0.01, 100.0, "", "physics",
    "factor of mass and inertia of what moves freely, or of everything where nothing does", stress=(0.5, 2.0),
)  # fmt: skip
FRICTION = Axis("friction", 1.0, 0.0, 100.0, "", "physics", "factor of the friction of everything", stress=(0.5, 2.0))
JOINT_DAMPING = Axis(
    "joint_damping", 1.0, 0.0, 100.0, "", "physics", "factor of the damping of the robot's joints",
    stress=(0.5, 2.0),
)  # fmt: skip
JOINT_STIFFNESS = Axis(
    "joint_stiffness", 1.0, 0.01, 100.0, "", "physics", "factor of the stiffness of the robot's controllers",
    stress=(0.5, 2.0),
)  # fmt: skip
GRAVITY = Axis("gravity", 1.0, 0.0, 10.0, "", "physics", "factor of gravity", stress=(0.5, 2.0))
START = Axis(
    "start", 1.0, 0.0, 3.0, "", "physics", "factor of how far things begin from the middle of their places",
    stress=(1.0, 2.0),
)  # fmt: skip
