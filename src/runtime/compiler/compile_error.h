#pragma once
#include "fusewright/error.h"
