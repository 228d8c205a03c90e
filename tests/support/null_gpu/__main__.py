"""`python -m tests.support.null_gpu`: installs TensorFlow's CUDA wheel for the null GPU if missing."""

from tests.support.null_gpu import SITE, install

if not SITE.exists():
    install()
