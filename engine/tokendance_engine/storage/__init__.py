"""What a session keeps between rounds: masters once, each member as references plus its own rows.

Everything here is torch on the CPU and numpy; no engine is imported. `store.Store` is the way in.
"""
