"""Facts about the machine from its kernel and drivers, without TensorFlow.

Start with `nvml`: it reads a GPU into `results.schema.health.GPUFacts`. `driver_gpus` lists the GPUs and asks CUDA
which of them a process may use; `telemetry` observes them while steps are timed;
`cuda_libraries` makes NVIDIA's libraries available to TensorFlow; `host` describes the CPU, its limits and its use.
"""
