/* Devices, memory, the clock of streams, the worker of host functions, and the counts. */
#define _GNU_SOURCE
#include "nullgpu.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

device devices[MAX_DEVICES];
int device_count;
size_t device_memory;
const char *device_name = "NVIDIA RTX A4000";
_Thread_local device *current;

static long long kernel_ns, queue_length;   /* 0: no limit */
static double copy_ns_per_byte;
static int slow_ordinal = -1;
static double slow_factor = 1;
static const char *fault = "";        /* lost, stuck or nccl_stuck */
static long fault_after;              /* kernels */
static atomic_long kernels_so_far;
static const long long FOREVER = 1ll << 62;
static FILE *log_file;
static hit *hits;
static _Thread_local bool dispatches;  /* this thread reset the counts: its calls are also counted separately */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const size_t RANGE = 1ull << 40, ALIGN = 1 << 21;
static char *pinned_base;
static size_t pinned_next = 4096;
static struct { char *p; size_t n; } registered[4096];
static int registered_count;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static double number(const char *name, double otherwise) { const char *s = getenv(name); return s && *s ? atof(s) : otherwise; }

static char *reserve(void) {
    void *p = mmap(NULL, RANGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) { perror("nullgpu: mmap"); abort(); }
    madvise(p, RANGE, MADV_DONTDUMP);
    return (char *)(((uintptr_t)p + ALIGN - 1) & ~(ALIGN - 1));
}

__attribute__((constructor)) static void start(void) {
    if (device_count) return;
    device_count = (int)number("NULLGPU_DEVICES", 2);
    device_memory = (size_t)(number("NULLGPU_MEMORY_MIB", 16117) * (1 << 20));
    if (getenv("NULLGPU_NAME")) device_name = getenv("NULLGPU_NAME");
    kernel_ns = (long long)(number("NULLGPU_KERNEL_US", 0) * 1000);
    double rate = number("NULLGPU_COPY_GBS", 0);
    if (getenv("NULLGPU_SLOW")) sscanf(getenv("NULLGPU_SLOW"), "%d:%lf", &slow_ordinal, &slow_factor);
    if (getenv("NULLGPU_FAULT")) fault = getenv("NULLGPU_FAULT");
    fault_after = (long)number("NULLGPU_FAULT_AFTER", 0);
    copy_ns_per_byte = rate > 0 ? 1 / rate : 0;
    for (int i = 0; i < device_count; ++i) {
        stream *s = calloc(1, sizeof *s);
        devices[i] = (device){.ordinal = i, .base = reserve(), .default_stream = s};
        s->d = &devices[i];
    }
    pinned_base = reserve();
    const char *path = getenv("NULLGPU_LOG");
    if (path && *path) { char s[4096]; snprintf(s, sizeof s, "%s.%d", path, getpid()); log_file = fopen(s, "w"); }
}

/* --- counts */
void touch(hit *h, long long bytes, const void *s) {
    if (!h->first) {
        pthread_mutex_lock(&lock);
        hit *same = hits;
        while (same && strcmp(same->name, h->name)) same = same->next;
        if (!same) { h->next = hits; hits = same = h; }
        h->first = same;
        pthread_mutex_unlock(&lock);
    }
    h = h->first;
    atomic_fetch_add(&h->count, 1);
    if (dispatches) atomic_fetch_add(&h->own, 1);
    atomic_fetch_add(&h->bytes, bytes);
    if (log_file) fprintf(log_file, "%lld %ld %s %lld %p\n", now() / 1000, syscall(SYS_gettid), h->name, bytes, s);
}
extern kernel kernels[];
extern const int KERNELS;
static void write_counts(FILE *f) {
    fprintf(f, "{\"calls\": {");
    const char *comma = "";
    for (hit *h = hits; h; h = h->next) if (h->count) {
        fprintf(f, "%s\n \"%s\": [%ld, %ld, %ld]", comma, h->name, (long)h->count, (long)h->bytes, (long)h->own);
        comma = ",";
    }
    fprintf(f, "},\n\"kernels\": {");
    comma = "";
    for (int i = 0; i < KERNELS; ++i) if (kernels[i].count) {
        fprintf(f, "%s\n \"%s\": %ld", comma, kernels[i].name, (long)kernels[i].count);
        comma = ",";
    }
    fprintf(f, "},\n\"peak_bytes\": [");
    for (int i = 0; i < device_count; ++i) fprintf(f, "%s%zu", i ? ", " : "", devices[i].peak);
    fprintf(f, "]}\n");
}
/* For Python: counts since the last reset, as JSON; the caller frees nothing. */
const char *nullgpu_counts(void) {
    static char *text;
    static size_t n;
    free(text);
    FILE *f = open_memstream(&text, &n);
    write_counts(f);
    fclose(f);
    return text;
}
/* Forgets all counts; from here on kernels take the time of a variable that was set meanwhile, e.g. after a fork. */
void nullgpu_reset(void) {
    kernel_ns = (long long)(number("NULLGPU_KERNEL_US", 0) * 1000);
    queue_length = (long long)number("NULLGPU_QUEUE", 0);
    for (hit *h = hits; h; h = h->next) h->count = h->bytes = h->own = 0;
    dispatches = true;
    for (int i = 0; i < KERNELS; ++i) kernels[i].count = 0;
    for (int i = 0; i < device_count; ++i) devices[i].peak = devices[i].used;
}
void nullgpu_mark(const char *text) {
    if (!log_file) return;
    fprintf(log_file, "%lld %ld MARK:%s 0 0\n", now() / 1000, syscall(SYS_gettid), text);
    fflush(log_file);  /* the process may end without running destructors */
}
__attribute__((destructor)) static void end(void) {
    const char *path = getenv("NULLGPU_COUNTS");
    if (path && *path && hits) {
        char s[4096];
        snprintf(s, sizeof s, "%s.%d", path, getpid());
        FILE *f = fopen(s, "w");
        if (f) { write_counts(f); fclose(f); }
    }
    if (log_file) fflush(log_file);
}

/* --- memory */
typedef struct block { char *p; size_t n; struct block *next; } block;
static block *blocks[1 << 12];
static block **bucket(const void *p) { return &blocks[((uintptr_t)p >> 8) * 2654435761u >> 7 & 0xfff]; }

device *device_of(const void *p) {
    for (int i = 0; i < device_count; ++i) {
        if ((char *)p >= devices[i].base && (char *)p < devices[i].base + RANGE - ALIGN) return &devices[i];
    }
    return NULL;
}
bool pinned(const void *p) {
    if ((char *)p >= pinned_base && (char *)p < pinned_base + RANGE - ALIGN) return true;
    for (int i = 0; i < registered_count; ++i) {
        if ((char *)p >= registered[i].p && (char *)p < registered[i].p + registered[i].n) return true;
    }
    return false;
}
int give_memory(void **p, size_t n) {
    device *d = current ? current : &devices[0];
    size_t whole = (n + ALIGN - 1) & ~(ALIGN - 1);
    if (n < ALIGN) whole = (n + 511) & ~511ull;
    pthread_mutex_lock(&lock);
    if (d->used + whole > device_memory || n == 0) { pthread_mutex_unlock(&lock); return n ? 2 : 1; }
    d->used += whole;
    if (d->used > d->peak) d->peak = d->used;
    if (n >= ALIGN) d->next = (d->next + ALIGN - 1) & ~(ALIGN - 1);
    block *b = malloc(sizeof *b), **at = bucket(d->base + d->next);
    *b = (block){d->base + d->next, whole, *at};
    *at = b;
    d->next += whole;
    pthread_mutex_unlock(&lock);
    *p = b->p;
    return 0;
}
int take_memory(void *p) {
    if (!p) return 0;
    device *d = device_of(p);
    if (!d) return 1;
    pthread_mutex_lock(&lock);
    for (block **at = bucket(p); *at; at = &(*at)->next) if ((*at)->p == p) {
        block *b = *at;
        *at = b->next;
        d->used -= b->n;
        if (b->n >= ALIGN) madvise(b->p, b->n, MADV_DONTNEED);
        free(b);
        break;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
int give_pinned(void **p, size_t n) {
    pthread_mutex_lock(&lock);
    *p = pinned_base + pinned_next;
    pinned_next += (n + 4095) & ~4095ull;
    pthread_mutex_unlock(&lock);
    return 0;
}
int pin(void *p, size_t n) {
    pthread_mutex_lock(&lock);
    if (registered_count < 4096) { registered[registered_count].p = p; registered[registered_count++].n = n; }
    pthread_mutex_unlock(&lock);
    return 0;
}

/* --- time */
stream *of(const void *handle) {
    if ((uintptr_t)handle > 4096) return (stream *)handle;
    return (current ? current : &devices[0])->default_stream;
}
static void advance(stream *s, long long ns) {
    if (!kernel_ns && ns == 0) return;
    long long before = s->busy, t, n = now();
    do t = (before > n ? before : n) + ns; while (!atomic_compare_exchange_weak(&s->busy, &before, t));
}
static bool has_begun(const char *name) { return !strcmp(fault, name) && kernels_so_far > fault_after; }
int state(void) { return has_begun("lost") ? 999 : 0; }
void work(const void *handle, const char *what, const kernel *k) {
    stream *s = of(handle);
    ++kernels_so_far;
    if (k) atomic_fetch_add((atomic_long *)&k->count, 1);
    if (queue_length) wait_until(s->busy - queue_length * kernel_ns);
    advance(s, s->d->ordinal == slow_ordinal ? (long long)(slow_factor * (double)kernel_ns) : kernel_ns);
    if (has_begun("stuck") || (!strncmp(what, "nccl", 4) && has_begun("nccl_stuck"))) s->busy = FOREVER;
}
void wait_until(long long at) {
    for (long long left; (left = at - now()) > 0;) {
        struct timespec t = {left / 1000000000, left % 1000000000};
        nanosleep(&t, NULL);
    }
}
long long the_time(void) { return now(); }
static pthread_cond_t called = PTHREAD_COND_INITIALIZER, asked = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
void wait_for(stream *s) {
    long long host = s->host_enqueued;
    wait_until(s->busy);
    pthread_mutex_lock(&queue_lock);
    while (s->host_done < host) pthread_cond_wait(&called, &queue_lock);
    pthread_mutex_unlock(&queue_lock);
}

/* --- host functions: in order of time, those of equal time in order of their calls */
typedef struct task { long long at; stream *s; void (*f)(void *); void *x; struct task *next; } task;
static task *queue;
static bool running;
static void *run(void *unused) {
    (void)unused;
    pthread_mutex_lock(&queue_lock);
    for (;;) {
        while (!queue) pthread_cond_wait(&asked, &queue_lock);
        task *t = queue;
        long long left = t->at - now();
        if (left > 0) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            long long ns = until.tv_nsec + left;
            until.tv_sec += ns / 1000000000;
            until.tv_nsec = ns % 1000000000;
            pthread_cond_timedwait(&asked, &queue_lock, &until);
            continue;
        }
        queue = t->next;
        pthread_mutex_unlock(&queue_lock);
        t->f(t->x);
        pthread_mutex_lock(&queue_lock);
        ++t->s->host_done;
        pthread_cond_broadcast(&called);
        free(t);
    }
    return NULL;
}
int call_later(const void *handle, void (*f)(void *), void *x) {
    stream *s = of(handle);
    task *t = malloc(sizeof *t);
    *t = (task){s->busy, s, f, x, NULL};
    pthread_mutex_lock(&queue_lock);
    ++s->host_enqueued;
    if (!running) {
        pthread_t thread;
        running = true;
        pthread_create(&thread, NULL, run, NULL);
        pthread_detach(thread);
    }
    task **at = &queue;
    while (*at && (*at)->at <= t->at) at = &(*at)->next;
    t->next = *at;
    *at = t;
    pthread_cond_signal(&asked);
    pthread_mutex_unlock(&queue_lock);
    return 0;
}

/* --- copies */
int copy(void *to, const void *from, size_t n, const void *handle, bool async) {
    device *a = device_of(from), *b = device_of(to);
    if (!a && !b) { memcpy(to, from, n); HIT_AS("copy.h2h", n, handle); return 0; }
    bool slow = a && b ? false : !pinned(a ? to : from);
    if (a && b && a != b) HIT_AS("copy.peer", n, handle);
    else if (a && b) HIT_AS("copy.d2d", n, handle);
    else if (a && slow) HIT_AS("copy.d2h.pageable", n, handle);
    else if (a) HIT_AS("copy.d2h.pinned", n, handle);
    else if (slow) HIT_AS("copy.h2d.pageable", n, handle);
    else HIT_AS("copy.h2d.pinned", n, handle);
    if (!(a && b) || n <= 4096) memcpy(to, from, n);  /* large copies within a GPU are dropped, like kernels */
    if (a && !b && n == 1) *(uint8_t *)to &= 1;  /* keep uncomputed bools valid */
    stream *s = of(handle);
    advance(s, (long long)((double)n * copy_ns_per_byte));
    if (!async || (slow && a)) {
        HIT_AS("sync.copy", n, handle);
        wait_for(s);
    }
    return 0;
}
int set(void *to, unsigned value, size_t width, size_t count, const void *handle, bool async) {
    size_t n = width * count, page = 4096;
    HIT_AS("memset", n, handle);
    char *p = to, *first = (char *)(((uintptr_t)p + page - 1) & ~(page - 1)), *last = (char *)(((uintptr_t)p + n) & ~(page - 1));
    if (!device_of(to)) { if (width == 1) memset(p, (int)value, n); return 0; }
    if (value == 0 && n > 1 << 16) {  /* missing pages are zero */
        memset(p, 0, (size_t)(first - p));
        madvise(first, (size_t)(last - first), MADV_DONTNEED);
        memset(last, 0, (size_t)(p + n - last));
    } else if (width == 1) memset(p, (int)value, n);
    else if (width == 2) for (size_t i = 0; i < count; ++i) ((uint16_t *)to)[i] = (uint16_t)value;
    else for (size_t i = 0; i < count; ++i) ((uint32_t *)to)[i] = value;
    work(handle, "memset", NULL);
    if (!async) wait_for(of(handle));
    return 0;
}

/* --- handles without content, and their streams */
static struct { void *s; } handles[1 << 16];
static atomic_int handle_count = 1;
void *fresh(void) {
    int i = atomic_fetch_add(&handle_count, 1) & 0xffff;
    handles[i].s = NULL;
    return &handles[i];
}
static bool is_handle(void *h) { return (char *)h >= (char *)handles && (char *)h < (char *)(handles + (1 << 16)); }
void set_stream_of(void *h, void *s) { if (is_handle(h)) ((__typeof__(handles[0]) *)h)->s = s; }
void *stream_of(void *h) { return is_handle(h) ? ((__typeof__(handles[0]) *)h)->s : NULL; }

/* --- RTX A4000; numbers of CUdevice_attribute, those of cudaDeviceAttr are the same */
int attribute(int a, const device *d) {
    static const int known[][2] = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536},
        {10, 32}, {11, 2147483647}, {12, 65536}, {13, 1560000}, {14, 512}, {15, 1}, {16, 48}, {19, 1}, {31, 1},
        {36, 7001000}, {37, 256}, {38, 4194304}, {39, 1536}, {40, 2}, {41, 1}, {75, 8}, {76, 6}, {78, 1}, {79, 1},
        {80, 1}, {81, 102400}, {82, 65536}, {83, 1}, {89, 1}, {90, 1}, {91, 1}, {95, 1}, {97, 101376}, {99, 1},
        {102, 1}, {103, 1}, {106, 16}, {108, 3145728}, {109, 134213632}, {111, 1024}, {115, 1}, {119, 9},
    };
    if (a == 33) return 1 + d->ordinal;  /* PCI bus */
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i) if (known[i][0] == a) return known[i][1];
    return 0;
}
