#include "agent.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "io.h"
#include "netconf.h"

static const char magic[4] = {'K', 'R', 'D', 'C'};

enum { VERSION = 1, FLAG_NETNS = 1, MAX_EXIT_STATUS = 255 };

/* One exchange in progress. */
struct exchange {
    int fd;
    uint64_t deadline_ms;
    struct sockaddr_un address;
    struct cni_error *error;
};

/* The error of an agent that did not answer: what it did, and what to do about it. */
static bool unanswered(struct exchange *x, const char *what, const char *advice)
{
    return fail(x->error, CNI_TRY_AGAIN_LATER, "the k8s-rdma agent of this node %s at %s: %s", what,
                x->address.sun_path, advice);
}

static bool unreachable(struct exchange *x, const char *call, int number)
{
    explain(x->error, call, number);
    return unanswered(x, "cannot be reached", "see whether its pod runs here; try again later");
}

static bool too_slow(struct exchange *x, const char *call)
{
    explain(x->error, call, ETIMEDOUT);
    return unanswered(x, "did not answer in time", "see its log for what it waits for; try again later");
}

static bool broken_off(struct exchange *x)
{
    return unanswered(x, "broke off before it had answered", "see its log for the reason; try again later");
}

static void put(unsigned char *at, uint64_t number, int size)
{
    for (int i = 0; i < size; i++)
        at[i] = (unsigned char)(number >> 8 * i);
}

static uint32_t get(const unsigned char *at, int size)
{
    uint32_t number = 0;
    for (int i = size; i-- > 0;)
        number = number << 8 | at[i];
    return number;
}

struct span whole_frame(const struct request *request, uint64_t deadline_ms)
{
    memcpy(request->frame, magic, sizeof magic);
    put(request->frame + 4, VERSION, 2);
    put(request->frame + 6, request->netns >= 0 ? FLAG_NETNS : 0, 2);
    put(request->frame + 8, request->env_size, 4);
    put(request->frame + 12, request->stdin_size, 4);
    put(request->frame + 16, deadline_ms, 8);
    return (struct span){request->frame, request->frame + REQUEST_HEADER_SIZE + request->env_size + request->stdin_size};
}

/* A send timeout bounds the wait for a place in the agent's backlog (af_unix.c, unix_stream_connect); one of
 * zero would be none. */
static int connect_within(struct exchange *x)
{
    uint64_t left = left_ms(x->deadline_ms);
    struct timeval limit = {.tv_sec = (time_t)(left / 1000), .tv_usec = (suseconds_t)(left % 1000 * 1000 + 1)};
    int status = setsockopt(x->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return status != 0 ? status : connect(x->fd, (struct sockaddr *)&x->address, sizeof x->address);
}

static bool connect_agent(struct exchange *x)
{
    x->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (x->fd < 0)
        return unreachable(x, "socket", errno);
    int status;
    do
        status = connect_within(x);
    while (status != 0 && errno == EINTR);
    if (status != 0 && errno == EAGAIN)
        return too_slow(x, "connect");
    return status == 0 || unreachable(x, "connect", errno);
}

/* Sends what the socket takes; the descriptor goes with the first byte. */
static ssize_t send_some(int fd, struct span data, int netns)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec part = {(void *)data.at, (size_t)(data.end - data.at)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (netns >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_len = CMSG_LEN(sizeof netns);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        memcpy(CMSG_DATA(header), &netns, sizeof netns);
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* An agent that hangs up while the request is under way may have said why: then its reply is read. Of whatever
 * else fails it knows nothing, and would be waited for in vain. */
static bool send_all(struct exchange *x, struct span data, int netns)
{
    while (data.at < data.end) {
        ssize_t sent = send_some(x->fd, data, netns);
        if (sent > 0) {
            data.at += sent;
            netns = -1;
        } else if (errno == EAGAIN) {
            if (!wait_ready(x->fd, POLLOUT, x->deadline_ms))
                return too_slow(x, "send");
        } else if (errno == EPIPE || errno == ECONNRESET) {
            return true;
        } else if (errno != EINTR) {
            return unreachable(x, "send", errno);
        }
    }
    return true;
}

static bool receive(struct exchange *x, unsigned char *buffer, size_t size)
{
    ssize_t got = read_all(x->fd, buffer, size, x->deadline_ms);
    if (got == (ssize_t)size)
        return true;
    if (got >= 0)
        snprintf(x->error->details, sizeof x->error->details, "%zd of %zu bytes received", got, size);
    else if (errno == ETIMEDOUT)
        return too_slow(x, "receive");
    else
        explain(x->error, "receive", errno);
    return broken_off(x);
}

static bool receive_reply(struct exchange *x, struct reply *reply)
{
    static unsigned char standard_output[MAX_STDOUT_SIZE];
    unsigned char header[REPLY_HEADER_SIZE];
    if (!receive(x, header, sizeof header))
        return false;
    uint32_t exit_status = get(header + 6, 2), size = get(header + 8, 4);
    if (memcmp(header, magic, sizeof magic) != 0 || get(header + 4, 2) != VERSION
        || exit_status > MAX_EXIT_STATUS || size > MAX_STDOUT_SIZE)
        return unanswered(x, "does not speak version 1 of the protocol",
                          "install the k8s-rdma-cni of the agent's release");
    if (!receive(x, standard_output, size))
        return false;
    reply->standard_output = (struct span){standard_output, standard_output + size};
    reply->exit_status = (int)exit_status;
    return true;
}

bool ask_agent(const char *run_dir, uint32_t timeout_ms, struct request request, struct reply *reply,
               struct cni_error *error)
{
    struct exchange x = {
        .fd = -1,
        .deadline_ms = now_ms() + timeout_ms,
        .address = {.sun_family = AF_UNIX},
        .error = error,
    };
    snprintf(x.address.sun_path, sizeof x.address.sun_path, "%s" SOCKET_NAME, run_dir);
    struct span frame = whole_frame(&request, x.deadline_ms);
    bool answered = connect_agent(&x) && send_all(&x, frame, request.netns) && receive_reply(&x, reply);
    if (x.fd >= 0)
        close(x.fd);
    return answered;
}
