"""Looking at machines, checkpoints and promises: doctor, audit, inspect, synth, convert."""
