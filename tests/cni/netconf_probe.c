/* Reads network configurations from standard input, each after its length (u32, native), and says of each on a
 * line what netconf.c made of it: an error's code, or wish, timeout, what pods need the agent for, the bytes of cniVersion and
 * prevResult as offsets, and runDir in hexadecimal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "netconf.h"

static void show_span(const char *name, struct span value, const unsigned char *start, size_t size)
{
    if (value.at >= start && value.at <= start + size)
        printf(" %s=%td:%td", name, value.at - start, value.end - start);
}

static void show(const struct netconf *conf, const unsigned char *start, size_t size)
{
    printf("ok wish=%d timeout=%u delegate=%d only=%d exclusive=%d", (int)conf->wish, (unsigned)conf->timeout_ms,
           conf->delegate, conf->only_plugin, conf->exclusive_devices);
    show_span("version", conf->cni_version, start, size);
    show_span("prev", conf->prev_result, start, size);
    printf(" run_dir=");
    for (const char *c = conf->run_dir; *c; c++)
        printf("%02x", (unsigned char)*c);
    printf("\n");
}

int main(void)
{
    for (uint32_t size; fread(&size, sizeof size, 1, stdin) == 1;) {
        unsigned char *text = malloc(size ? size : 1);
        if (!text || fread(text, 1, size, stdin) != size)
            return EXIT_FAILURE;
        struct netconf conf;
        struct cni_error error;
        netconf_init(&conf);
        if (netconf_read(&conf, (struct span){text, text + size}, &error))
            show(&conf, text, size);
        else
            printf("error code=%d\n", (int)error.code);
        fflush(stdout);
        free(text);
    }
    return EXIT_SUCCESS;
}
