"""The training step and its input, the same for Keras 2 and 3 and for every network.

Start with `step`: forward, backward, all-reduce and update of each replica. `optimizers` updates the weights, `tasks`
draws examples and computes losses, `inputs` gives synthetic batches, `tfrecords` real ones.
"""
