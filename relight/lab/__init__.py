"""Looking at machines, checkpoints and promises: doctor, audit, eval, step, inspect, synth,
convert."""
