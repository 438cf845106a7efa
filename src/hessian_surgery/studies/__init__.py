"""Studies of what the method rests on: spikes, the bulk, how linear S is, what predicts gains."""
