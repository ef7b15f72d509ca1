"""Ray without processes: a cluster in one thread and virtual time, in which everything follows from a seed.

``world`` holds nodes, processes, objects and calls; ``surface`` puts it in the place of the names of Ray that rlpipe
uses; ``stubs`` are workers and learners that cost nothing; ``schedules`` draw a run and its faults from a seed;
``trials`` run the real engine, pool, recovery, loop and logger through them; ``oracle`` checks what they wrote.

Not simulated: inference servers and several learners (threads and sockets between actors), backends with processes.
"""
