"""Real engines on loopback for tests: Docker, a registry, sshd.

They use their own folders and end with the test session, without using or changing the machine's Docker, network or ssh
settings. They need root and the Debian packages that `.ci/run` installs.
"""
