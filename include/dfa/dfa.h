#pragma once

// The whole public API.
#include "dfa/attention.h"
#include "dfa/dtype.h"
#include "dfa/error.h"
#include "dfa/export.h"
#include "dfa/mask.h"
#include "dfa/problem.h"
#include "dfa/version.h"
