/* Loaded before libc: counts the file operations of a process under one folder, and at the one it is told to
 * kills the process (after it, or with half of the bytes written) or lets the disk be full from there on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COUNT, AFTER, HALF, FULL };
static char folder[4096];
static int at, mode, count, full;
static char ours[65536], writes[65536]; /* the second: which of the operations counted were writes */

void chaos_arm(int where, int how, const char *under) { at = where, mode = how, count = full = 0; strncpy(folder, under, 4095); }
int chaos_count(void) { return count; }
int chaos_write(int which) { return which > 0 && which < (int)sizeof writes && writes[which]; }
static int inside(const char *path) { return folder[0] && path && strncmp(path, folder, strlen(folder)) == 0; }
static void die(void) { kill(getpid(), SIGKILL); for (;;) pause(); }
static int before(int half) { /* 1: the disk is full */
    if (++count < (int)sizeof writes) writes[count] = half;
    if (count == at && mode == FULL) full = 1;
    return full;
}
static void after(void) { if (count == at && mode == AFTER) die(); }
#define REAL(name, type) ((type)dlsym(RTLD_NEXT, #name))
#define NO_SPACE return errno = ENOSPC, -1

static int open_as(int (*real)(const char *, int, ...), const char *path, int flags, mode_t rights) {
    int writes = inside(path) && (flags & (O_CREAT | O_WRONLY | O_RDWR));
    if (writes && before(0) && (flags & O_CREAT) && access(path, F_OK)) NO_SPACE;
    int fd = real(path, flags, rights);
    if (fd >= 0 && fd < (int)sizeof ours) ours[fd] = inside(path);
    if (writes) after();
    return fd;
}
#define OPEN(name) int name(const char *path, int flags, ...) { va_list a; va_start(a, flags); mode_t m = va_arg(a, int); va_end(a); \
    return open_as(REAL(name, int (*)(const char *, int, ...)), path, flags, m); }
OPEN(open)
OPEN(open64)
ssize_t write(int fd, const void *bytes, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = REAL(write, ssize_t (*)(int, const void *, size_t));
    if (fd < 0 || fd >= (int)sizeof ours || !ours[fd]) return real(fd, bytes, size);
    if (before(1)) { real(fd, bytes, size / 3); NO_SPACE; }
    if (count == at && mode == HALF) { real(fd, bytes, size / 2); die(); }
    ssize_t done = real(fd, bytes, size);
    after();
    return done;
}
int close(int fd) { if (fd >= 0 && fd < (int)sizeof ours) ours[fd] = 0; return REAL(close, int (*)(int))(fd); }
int fsync(int fd) {
    int mine = fd >= 0 && fd < (int)sizeof ours && ours[fd];
    if (mine && before(0)) NO_SPACE;
    int done = REAL(fsync, int (*)(int))(fd);
    if (mine) after();
    return done;
}
int rename(const char *from, const char *to) {
    int mine = inside(to);
    if (mine) before(0);
    int done = REAL(rename, int (*)(const char *, const char *))(from, to);
    if (mine) after();
    return done;
}
int unlink(const char *path) {
    int mine = inside(path);
    if (mine) before(0);
    int done = REAL(unlink, int (*)(const char *))(path);
    if (mine) after();
    return done;
}
int mkdir(const char *path, mode_t rights) {
    int mine = inside(path);
    if (mine && before(0)) NO_SPACE;
    int done = REAL(mkdir, int (*)(const char *, mode_t))(path, rights);
    if (mine) after();
    return done;
}
