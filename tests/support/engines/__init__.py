"""Real engines on this machine's loopback for the tests: Docker, a registry, sshd.

Everything lives in folders of its own and ends with the test session; nothing of the machine's own Docker,
network or ssh set-up is used or changed. Needs root and the Debian packages that `.ci/run` installs.
"""
