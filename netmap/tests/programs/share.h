/* A port that one program sends to another by a UNIX socket. */
#ifndef SHARE_H
#define SHARE_H

#include <sys/socket.h>
#include <sys/un.h>

#include "port.h"

/* The message: the registration, with the descriptor beside it. */
union files {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
};

static inline struct sockaddr_un address_of(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    return address;
}

#endif
