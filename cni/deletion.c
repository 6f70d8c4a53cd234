#include "deletion.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "environment.h"
#include "io.h"
#include "netconf.h"

/* A file in memory takes what it is given at once. */
enum { WRITE_TIMEOUT_MS = 10 * 1000 };

/* What the agent knows the attachment by. No ID has a colon; whatever has a slash is no name of a file here. */
static bool name_file(char *name, size_t size, const struct request *request)
{
    const unsigned char *stdin_at = request->frame + REQUEST_HEADER_SIZE + request->env_size;
    struct span netconf = {stdin_at, stdin_at + request->stdin_size};
    char network[NAME_MAX + 1];
    if (!json_document(&netconf) || !json_copy(json_member(netconf, "name"), network, sizeof network))
        return false;
    int length = snprintf(name, size, "%s:%s:%s", variable("CNI_CONTAINERID"), variable("CNI_IFNAME"), network);
    return length > 0 && (size_t)length < size && !strchr(name, '/');
}

static bool write_file(int directory, const char *name, struct span data)
{
    int file = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file < 0)
        return false;
    bool written = write_all(file, data, now_ms() + WRITE_TIMEOUT_MS);
    if (close(file) == 0 && written)
        return true;
    unlinkat(directory, name, 0);
    return false;
}

/* The draft's name begins with a dot, as no container's ID does, so that nobody reads it. Not by the process alone:
 * two may have the same number, each in its own namespace. */
static bool put_file(int directory, const char *name, struct span data)
{
    char draft[64];
    snprintf(draft, sizeof draft, ".%ld.%llu", (long)getpid(), (unsigned long long)now_ms());
    if (!write_file(directory, draft, data))
        return false;
    if (renameat(directory, draft, directory, name) == 0)
        return true;
    unlinkat(directory, draft, 0);
    return false;
}

bool leave_deletion(const char *run_dir, struct request request)
{
    char path[RUN_DIR_SIZE + sizeof DELETION_DIRECTORY], name[NAME_MAX + 1];
    if (!name_file(name, sizeof name, &request))
        return false;
    snprintf(path, sizeof path, "%s" DELETION_DIRECTORY, run_dir);
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return false;
    request.netns = -1;
    bool left = put_file(directory, name, whole_frame(&request, 0));
    close(directory);
    return left;
}
