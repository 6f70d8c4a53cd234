#include "version.h"

#include <stdio.h>

/* As in src/k8s_rdma/wire/cni_version.py, from the oldest on. */
static const char *const supported[] = {"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"};
#define LIST "0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"

enum { NOT_SUPPORTED = -1, WITH_CHECK = 4, NEWEST = 6 };

static int find(struct span asked)
{
    for (int i = 0; asked.at && i <= NEWEST; i++)
        if (json_equals(asked, supported[i]))
            return i;
    return NOT_SUPPORTED;
}

bool check_version(struct span asked, enum verb verb, struct cni_error *error)
{
    static const int least[] = {[ADD] = 0, [DEL] = NOT_SUPPORTED, [CHECK] = WITH_CHECK, [STATUS] = NEWEST, [GC] = NEWEST};
    int found = find(asked);
    if (verb == VERSION || found >= least[verb])
        return true;
    if (found != NOT_SUPPORTED)
        return fail(error, CNI_INCOMPATIBLE_VERSION,
                    "incompatible CNI version: the network configuration asks for %s, and %s is from %s on",
                    supported[found], variable("CNI_COMMAND"), supported[least[verb]]);
    snprintf(error->details, sizeof error->details, "supported are " LIST "; CHECK from 0.4.0, STATUS and GC from 1.1.0 on");
    return fail(error, CNI_INCOMPATIBLE_VERSION, "incompatible CNI version: the network configuration asks for %.*s",
                (int)(asked.end - asked.at), (const char *)asked.at);
}

const char *error_version(struct span asked)
{
    int found = find(asked);
    return supported[found == NOT_SUPPORTED ? NEWEST : found];
}

struct span version_document(struct span asked)
{
    static const unsigned char newest[] = "\"1.1.0\"";
    static char text[256];
    if (!asked.at)
        asked = (struct span){newest, newest + sizeof newest - 1};
    int size = snprintf(text, sizeof text, "{\"cniVersion\":%.*s,\"supportedVersions\":[",
                        (int)(asked.end - asked.at), (const char *)asked.at);
    for (int i = 0; i <= NEWEST; i++)
        size += snprintf(text + size, sizeof text - (size_t)size, "\"%s\"%s", supported[i], i < NEWEST ? "," : "]}\n");
    return (struct span){(unsigned char *)text, (unsigned char *)text + size};
}
