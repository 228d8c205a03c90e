"""`python -m tests.support.null_gpu`: install TensorFlow's CUDA wheel for the null GPU, unless it is there."""

from tests.support.null_gpu import SITE, install

if not SITE.exists():
    install()
