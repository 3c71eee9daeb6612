/* Stands between a process and the C library, and fails one call: the disk at its worst, exactly where it is asked to.

   IOFAULT_ROOT   only calls on files below this folder are counted
   IOFAULT_LOG    every such call is written down here: number, kind, name of the call, file, offset, length, fate
   IOFAULT_PLAN   "n:mode", the call that fails and how; without it everything goes well

   `iofault_arm` reads them; a process that was forked from a preloaded one calls it when it is ready. Calls to sync are
   counted and not passed on: these tests kill processes, never the machine, and a sync does nothing for a process. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HANDLES 1024
#define NAME 256

/* -- what the calls are ------------------------------------------------------------------------------------------- */

enum kind { WRITE, SYNC, CREATE, OPEN, RENAME, UNLINK, MKDIR, TRUNCATE, MAP, READ, LOCK };
static const char *const KINDS[] = {"write", "sync", "create", "open", "rename", "unlink", "mkdir", "truncate", "map",
                                    "read", "lock"};

enum mode { NONE, EIO_, ENOSPC_, FULL, SHORT, SHORT_FULL, TORN_EIO, TORN_KILL, KILL, KILL_AFTER, EINTR_, LATE_EIO, LOST };
static const char *const MODES[] = {"none",     "eio",       "enospc", "full",       "short", "short_full", "torn_eio",
                                    "torn_kill", "kill", "kill_after", "eintr", "late_eio",   "lost", NULL};

static int takes_space(enum kind kind) { return kind == WRITE || kind == CREATE || kind == MKDIR || kind == TRUNCATE; }

/* -- what is armed ------------------------------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int log_handle = -1;
static long seen, wanted;
static enum mode mode;
static int is_full;
static char names[HANDLES][NAME]; /* of the open files below the root, relative to it */

/* What was written since a file was last synced, so that it can be lost. */
struct undo { struct undo *next; dev_t device; ino_t inode; off_t offset, size; size_t length; char old[]; };
static struct undo *undos;

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static ssize_t real_write(int handle, const void *data, size_t length) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return real(handle, data, length);
}

static ssize_t real_pwrite(int handle, const void *data, size_t length, off_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off_t);
    return real(handle, data, length, offset);
}

static ssize_t real_pread(int handle, void *data, size_t length, off_t offset) {
    REAL(ssize_t, "pread64", int, void *, size_t, off_t);
    return real(handle, data, length, offset);
}

static int real_open(int folder, const char *path, int flags, mode_t permissions) {
    REAL(int, "openat64", int, const char *, int, ...);
    return real(folder, path, flags, permissions);
}

void iofault_arm(void) {
    const char *place = getenv("IOFAULT_ROOT"), *log = getenv("IOFAULT_LOG"), *plan = getenv("IOFAULT_PLAN");
    seen = wanted = 0, is_full = 0, mode = NONE;
    if (!place || !realpath(place, root)) return;
    root_length = strlen(root);
    if (log) log_handle = real_open(AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    const char *colon = plan ? strchr(plan, ':') : NULL;
    if (!colon) return;
    for (int i = 1; MODES[i]; i++)
        if (!strcmp(MODES[i], colon + 1)) mode = (enum mode)i;
    wanted = mode == NONE ? 0 : atol(plan);
}

__attribute__((constructor)) static void start(void) {
    if (getenv("IOFAULT_PLAN")) iofault_arm();
}

/* -- which file it is --------------------------------------------------------------------------------------------- */

static const char *below_root(const char *path) {
    if (!root_length || strncmp(path, root, root_length)) return NULL;
    return path[root_length] == '/' ? path + root_length + 1 : path[root_length] ? NULL : ".";
}

static const char *file_of(int handle) {
    return root_length && handle >= 0 && handle < HANDLES && names[handle][0] ? names[handle] : NULL;
}

static void remember(int handle) {
    char link[64], path[PATH_MAX];
    if (!root_length || handle < 0 || handle >= HANDLES) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    const char *name = below_root(path);
    snprintf(names[handle], NAME, "%s", name ? name : "");
}

static const char *file_at(const char *path, char *whole) {
    if (!root_length) return NULL;
    if (path[0] == '/') return below_root(path);
    if (!getcwd(whole, PATH_MAX)) return NULL;
    size_t length = strlen(whole);
    snprintf(whole + length, PATH_MAX - length, "/%s", path);
    return below_root(whole);
}

/* -- what becomes of a call --------------------------------------------------------------------------------------- */

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static enum mode fate_of(enum kind kind, const char *call, const char *file, off_t offset, size_t length) {
    pthread_mutex_lock(&lock);
    long number = ++seen;
    enum mode fate = number == wanted ? mode : NONE;
    if (is_full && takes_space(kind)) fate = ENOSPC_;
    if (number == wanted && (mode == FULL || mode == SHORT_FULL)) is_full = 1;
    if (log_handle >= 0) {
        char line[NAME + 128];
        int size = snprintf(line, sizeof line, "%ld\t%s\t%s\t%s\t%ld\t%zu\t%s\n", number, KINDS[kind], call, file,
                            (long)offset, length, MODES[fate]);
        real_write(log_handle, line, (size_t)size);
    }
    pthread_mutex_unlock(&lock);
    if (fate == KILL) die();
    return fate;
}

/* Whether the call fails without being made; sets errno. */
static int refused(enum mode fate) {
    int number = fate == EIO_ || fate == LOST ? EIO : fate == ENOSPC_ || fate == FULL ? ENOSPC : fate == EINTR_ ? EINTR : 0;
    if (number) errno = number;
    return number;
}

/* What comes after a call that was made. */
static int answer(enum mode fate, int result) {
    if (fate == KILL_AFTER) die();
    if (fate == LATE_EIO && result >= 0) {
        errno = EIO;
        return -1;
    }
    return result;
}

/* -- writing and syncing ------------------------------------------------------------------------------------------ */

static void keep_old(int handle, off_t offset, size_t length) {
    struct stat info;
    if (mode != LOST || fstat(handle, &info)) return;
    struct undo *undo = malloc(sizeof *undo + length);
    if (!undo) return;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", handle);
    int again = real_open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0); /* ours may be open for writing only */
    ssize_t got = again >= 0 ? real_pread(again, undo->old, length, offset) : 0;
    if (again >= 0) close(again);
    *undo = (struct undo){undos, info.st_dev, info.st_ino, offset, info.st_size, got > 0 ? (size_t)got : 0};
    undos = undo;
}

static void forget_old(int handle, int is_lost) {
    struct stat info;
    if (mode != LOST || fstat(handle, &info)) return;
    for (struct undo **at = &undos; *at;) {
        struct undo *undo = *at;
        if (undo->device != info.st_dev || undo->inode != info.st_ino) {
            at = &undo->next;
            continue;
        }
        if (is_lost) {
            real_pwrite(handle, undo->old, undo->length, undo->offset);
            if (ftruncate(handle, undo->size)) die();
        }
        *at = undo->next;
        free(undo);
    }
}

static ssize_t put(int handle, const char *data, size_t length, off_t offset, int has_offset) {
    return has_offset ? real_pwrite(handle, data, length, offset) : real_write(handle, data, length);
}

static ssize_t written(int handle, const void *data, size_t length, off_t offset, int has_offset, const char *call) {
    const char *file = file_of(handle);
    if (!file) return put(handle, data, length, offset, has_offset);
    off_t at = has_offset ? offset : lseek(handle, 0, SEEK_CUR);
    enum mode fate = fate_of(WRITE, call, file, at, length);
    if (refused(fate)) return -1;
    int is_part = fate == SHORT || fate == SHORT_FULL || fate == TORN_EIO || fate == TORN_KILL;
    keep_old(handle, at, length);
    ssize_t done = put(handle, data, is_part && length > 1 ? length / 2 : length, offset, has_offset);
    if (fate == TORN_KILL || fate == KILL_AFTER) die();
    if (fate == TORN_EIO || fate == LATE_EIO) {
        errno = EIO;
        return -1;
    }
    return done;
}

ssize_t write(int handle, const void *data, size_t length) { return written(handle, data, length, 0, 0, "write"); }

ssize_t pwrite64(int handle, const void *data, size_t length, off_t offset) {
    return written(handle, data, length, offset, 1, "pwrite");
}

ssize_t pwrite(int handle, const void *data, size_t length, off_t offset) {
    return written(handle, data, length, offset, 1, "pwrite");
}

static int synced(int handle, const char *call, int (*real)(int)) {
    const char *file = file_of(handle);
    if (!file) return real(handle);
    enum mode fate = fate_of(SYNC, call, file, 0, 0);
    forget_old(handle, fate == LOST);
    return refused(fate) ? -1 : answer(fate, 0);
}

int fsync(int handle) {
    REAL(int, "fsync", int);
    return synced(handle, "fsync", real);
}

int fdatasync(int handle) {
    REAL(int, "fdatasync", int);
    return synced(handle, "fdatasync", real);
}

int ftruncate64(int handle, off_t length) {
    REAL(int, "ftruncate64", int, off_t);
    const char *file = file_of(handle);
    if (!file) return real(handle, length);
    enum mode fate = fate_of(TRUNCATE, "ftruncate", file, length, 0);
    return refused(fate) ? -1 : answer(fate, real(handle, length));
}

/* -- names -------------------------------------------------------------------------------------------------------- */

static int opened(int folder, const char *path, int flags, mode_t permissions) {
    char whole[PATH_MAX];
    const char *file = folder == AT_FDCWD ? file_at(path, whole) : NULL;
    enum mode fate = file ? fate_of(flags & O_CREAT ? CREATE : OPEN, "open", file, 0, 0) : NONE;
    if (refused(fate)) return -1;
    int handle = real_open(folder, path, flags, permissions);
    if (fate == LATE_EIO && handle >= 0) close(handle);
    else if (file) remember(handle);
    return answer(fate, handle);
}

#define PERMISSIONS(flags) \
    mode_t permissions = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        permissions = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open64(const char *path, int flags, ...) {
    PERMISSIONS(flags)
    return opened(AT_FDCWD, path, flags, permissions);
}

int open(const char *path, int flags, ...) {
    PERMISSIONS(flags)
    return opened(AT_FDCWD, path, flags, permissions);
}

int openat64(int folder, const char *path, int flags, ...) {
    PERMISSIONS(flags)
    return opened(folder, path, flags, permissions);
}

int openat(int folder, const char *path, int flags, ...) {
    PERMISSIONS(flags)
    return opened(folder, path, flags, permissions);
}

int close(int handle) {
    REAL(int, "close", int);
    if (handle >= 0 && handle < HANDLES) names[handle][0] = 0;
    return real(handle);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    char whole[PATH_MAX];
    const char *file = file_at(to, whole);
    if (!file) return real(from, to);
    enum mode fate = fate_of(RENAME, "rename", file, 0, 0);
    return refused(fate) ? -1 : answer(fate, real(from, to));
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    char whole[PATH_MAX];
    const char *file = file_at(path, whole);
    if (!file) return real(path);
    enum mode fate = fate_of(UNLINK, "unlink", file, 0, 0);
    return refused(fate) ? -1 : answer(fate, real(path));
}

int mkdir(const char *path, mode_t permissions) {
    REAL(int, "mkdir", const char *, mode_t);
    char whole[PATH_MAX];
    const char *file = file_at(path, whole);
    if (!file) return real(path, permissions);
    enum mode fate = fate_of(MKDIR, "mkdir", file, 0, 0);
    return refused(fate) ? -1 : answer(fate, real(path, permissions));
}

/* -- reading, mapping, locking ------------------------------------------------------------------------------------ */

ssize_t pread64(int handle, void *data, size_t length, off_t offset) {
    const char *file = file_of(handle);
    if (!file) return real_pread(handle, data, length, offset);
    enum mode fate = fate_of(READ, "pread", file, offset, length);
    if (refused(fate)) return -1;
    return answer(fate, (int)real_pread(handle, data, fate == SHORT && length > 1 ? length / 2 : length, offset));
}

ssize_t pread(int handle, void *data, size_t length, off_t offset) { return pread64(handle, data, length, offset); }

ssize_t read(int handle, void *data, size_t length) {
    REAL(ssize_t, "read", int, void *, size_t);
    const char *file = file_of(handle);
    if (!file) return real(handle, data, length);
    enum mode fate = fate_of(READ, "read", file, 0, length);
    if (refused(fate)) return -1;
    return answer(fate, (int)real(handle, data, fate == SHORT && length > 1 ? length / 2 : length));
}

void *mmap64(void *address, size_t length, int protection, int flags, int handle, off_t offset) {
    REAL(void *, "mmap64", void *, size_t, int, int, int, off_t);
    const char *file = file_of(handle);
    enum mode fate = file ? fate_of(MAP, "mmap", file, offset, length) : NONE;
    if (refused(fate)) return MAP_FAILED;
    void *result = real(address, length, protection, flags, handle, offset);
    if (fate == KILL_AFTER) die();
    return result;
}

int fcntl64(int handle, int command, ...) {
    REAL(int, "fcntl64", int, int, ...);
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    const char *file = command == F_SETLK || command == F_SETLKW ? file_of(handle) : NULL;
    struct flock *lock_of = argument;
    if (!file || lock_of->l_type == F_UNLCK) return real(handle, command, argument);
    if (refused(fate_of(LOCK, "fcntl", file, lock_of->l_start, (size_t)lock_of->l_len))) {
        errno = ENOLCK;
        return -1;
    }
    return real(handle, command, argument);
}
