"""``asched demo``: a cluster, a workload and the daemon, on one machine and over real HTTP.

The API server with its simulated kubelets is a process of its own, so the figures are those of a
scheduler whose API server is elsewhere: what the server costs is not counted as the scheduler's.
"""
