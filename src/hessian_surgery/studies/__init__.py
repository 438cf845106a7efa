"""Studies of what the method rests on: how stable spikes are, how inert the bulk is, how linear S, how many axes."""
