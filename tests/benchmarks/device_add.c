/* a += b over two arrays, by threads: the add of STREAM (McCalpin 1995) in place, independent of TensorFlow.
 *
 * device_add ELEMENTS THREADS ROUNDS PASSES: prints the bytes per second of the best round, each of so many passes.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static float *total, *term;
static long elements;
static int threads, rounds, passes;
static pthread_barrier_t gate;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static double best = 1e30;

static void *work(void *argument) {
    long index = (long)argument, begin = elements * index / threads, end = elements * (index + 1) / threads;
    for (long i = begin; i < end; i++) { total[i] = 0.0f; term[i] = 1.0f; }
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&gate);
        double start = now();
        for (int pass = 0; pass < passes; pass++) {
            for (long i = begin; i < end; i++) total[i] += term[i];
            pthread_barrier_wait(&gate); /* as after each loop of STREAM: a pass ends when its slowest thread has */
        }
        if (index == 0 && now() - start < best) best = now() - start;
    }
    return NULL;
}

int main(int count, char **values) {
    if (count != 5) return 2;
    elements = atol(values[1]); threads = atoi(values[2]); rounds = atoi(values[3]); passes = atoi(values[4]);
    total = aligned_alloc(64, elements * sizeof(float)); term = aligned_alloc(64, elements * sizeof(float));
    pthread_t *all = calloc(threads, sizeof(pthread_t));
    if (!total || !term || !all) return 1;
    pthread_barrier_init(&gate, NULL, threads);
    for (long i = 0; i < threads; i++) pthread_create(&all[i], NULL, work, (void *)i);
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
    for (long i = 0; i < elements; i++) if (total[i] != (float)rounds * passes) return 3;
    printf("%.6e\n", 3.0 * sizeof(float) * elements * passes / best);
    return 0;
}
