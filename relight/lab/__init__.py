"""Looking at machines, checkpoints and promises: doctor, audit, eval, inspect, synth, convert."""
