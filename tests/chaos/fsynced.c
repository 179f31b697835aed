/* Keeps what a power loss leaves of a folder, strictly as POSIX promises it. Preloaded into a process, it writes after every successful
 * fsync or fdatasync below $FSYNCED_ROOT into $FSYNCED_SHADOW, a folder of the same file system:
 *
 *   contents/INODE   the bytes of a file when it was last synchronised
 *   names/INODE      the entries of a folder when it was last synchronised, a line each: `f INODE NAME` or `d INODE NAME`
 *   pins/INODE       a hard link to each file that was synchronised, so that no other file gets its inode
 *
 * Each file is written aside and renamed, so it is whole when the process is killed. A file that is not in contents/ would be empty.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void die(const char *what) {
    perror(what);
    abort();
}

/* Nothing here may call the functions that it replaces. */
static int new_file(const char *shadow, char *path) {
    static _Thread_local unsigned count;
    snprintf(path, PATH_MAX, "%s/aside.%ld.%u", shadow, syscall(SYS_gettid), count++);
    int made = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (made < 0) die(path);
    return made;
}

static void keep_contents(int fd, const char *link, const char *shadow, ino_t inode) {
    char aside[PATH_MAX], kept[PATH_MAX], bytes[1 << 16];
    int readable = (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY ? open(link, O_RDONLY) : fd;
    if (readable < 0) die(link);
    int made = new_file(shadow, aside);
    ssize_t num;
    for (off_t at = 0; (num = pread(readable, bytes, sizeof bytes, at)) > 0; at += num)
        if (write(made, bytes, num) != num) die(aside);
    if (num < 0) die(link);
    close(made);
    if (readable != fd) close(readable);
    snprintf(kept, sizeof kept, "%s/contents/%lu", shadow, (unsigned long)inode);
    if (rename(aside, kept)) die(kept);
    snprintf(kept, sizeof kept, "%s/pins/%lu", shadow, (unsigned long)inode);
    if (linkat(AT_FDCWD, link, AT_FDCWD, kept, AT_SYMLINK_FOLLOW) && errno != EEXIST && errno != ENOENT) die(kept);
}

static void keep_names(const char *path, const char *shadow, ino_t inode) {
    char aside[PATH_MAX], kept[PATH_MAX], line[PATH_MAX];
    int made = new_file(shadow, aside);
    DIR *folder = opendir(path);
    if (!folder) die(path);
    for (struct dirent *entry; (entry = readdir(folder));) {
        struct stat about;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (fstatat(dirfd(folder), entry->d_name, &about, AT_SYMLINK_NOFOLLOW)) continue; /* it was removed just now */
        char kind = S_ISDIR(about.st_mode) ? 'd' : 'f';
        int size = snprintf(line, sizeof line, "%c %lu %s\n", kind, (unsigned long)about.st_ino, entry->d_name);
        if (write(made, line, size) != size) die(aside);
    }
    closedir(folder);
    close(made);
    snprintf(kept, sizeof kept, "%s/names/%lu", shadow, (unsigned long)inode);
    if (rename(aside, kept)) die(kept);
}

static int is_inside(const char *path, const char *root) {
    size_t length = strlen(root);
    return !strncmp(path, root, length) && (!path[length] || path[length] == '/');
}

static void keep(int fd) {
    const char *root = getenv("FSYNCED_ROOT"), *shadow = getenv("FSYNCED_SHADOW");
    char link[64], path[PATH_MAX];
    struct stat about;
    if (!root || !shadow || fstat(fd, &about)) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return;
    path[size] = 0;
    if (!is_inside(path, root)) return;
    if (S_ISREG(about.st_mode)) keep_contents(fd, link, shadow, about.st_ino);
    if (S_ISDIR(about.st_mode)) keep_names(path, shadow, about.st_ino);
}

static int synchronise(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = real(fd), error = errno;
    if (!result) keep(fd);
    errno = error;
    return result;
}

int fsync(int fd) { return synchronise("fsync", fd); }
int fdatasync(int fd) { return synchronise("fdatasync", fd); }

/* A new folder may have the inode of one that was removed. */
int mkdir(const char *name, mode_t mode) {
    int (*real)(const char *, mode_t) = (int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "mkdir");
    const char *root = getenv("FSYNCED_ROOT"), *shadow = getenv("FSYNCED_SHADOW");
    char path[PATH_MAX], kept[PATH_MAX];
    struct stat about;
    int result = real(name, mode), error = errno;
    if (!result && root && shadow && realpath(name, path) && is_inside(path, root) && !stat(path, &about)) {
        snprintf(kept, sizeof kept, "%s/names/%lu", shadow, (unsigned long)about.st_ino);
        unlink(kept);
    }
    errno = error;
    return result;
}
