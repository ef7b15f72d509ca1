"""States, bodies and pictures of tasks in MuJoCo."""
